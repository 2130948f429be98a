// The driver of steps: a warp takes a tile of kTileBlocks blocks of one item, two blocks at a time, 16 lanes each,
// whose 16 elements are in registers. Where an operand is out of range, or memory is strided, the two blocks go an
// element after the other (slow-inl.h), to the same bits. Included in the namespace of a .cu file after slow-inl.h,
// tile-inl.h, weights-inl.h, lane_codec-inl.h and real-inl.h.

#ifdef LT_CUDA_FAST
inline constexpr bool kIsFast = true;
#else
inline constexpr bool kIsFast = false;
#endif

struct StepArguments {
  const DeviceItem* items;
  const i64* starts;
  i64 count, tiles;
  const void* tables;
  const cuda_kernels::ReplayState* replay;
};

// Whether this is the replay of a recorded step for which nothing has been prepared.
LT_FN bool is_void(const cuda_kernels::ReplayState* replay) { return replay && replay->prepared == replay->done; }

// Rules that divide a first moment by the square root of a second one: operands must be in range for Real.
template <class R>
inline constexpr bool kDivides = std::is_base_of_v<AdamBase, R>;

// Whether states of this kind may be rounded to nearest, and stochastically.
template <class C, bool kSigned>
inline constexpr bool kHasNearest = [] {
  if constexpr (requires { C::kNeedsRandom; })
    return !C::kNeedsRandom[kSigned];
  else
    return true;
}();
template <class C>
inline constexpr bool kHasRandom = C::kError > 0;

// The least of what is not 0, as bits less 1.
LT_FN u32 min_but_zero(u32 least, u32 u) {
#if defined __CUDA_ARCH__ && __CUDA_ARCH__ >= 900
  return __viaddmin_u32(u, ~0u, least);
#else
  return u - 1 < least ? u - 1 : least;
#endif
}

// The least positive number of bfloat16 for what is less, but not 0.
LT_FN float at_least_a_code(float second_moment) {
  const u32 u = bits(second_moment), least = (u < 1u ? u : 1u) << 16;
  return as_float(u > least ? u : least);
}

// Rules whose steps are never -0 where LaneBlocks takes them: Real's move does without the addition that would turn it.
// With a step size of 2^-27, quotients of 2^-121 or more make steps of 2^-148 or more; Lion's are multiples of lr.
template <class R>
using Float = std::conditional_t<kDivides<R> || std::is_same_v<R, Lion>, Real, float>;
LT_FN float value_of(float x) { return x; }
LT_FN float value_of(Real x) { return x.x; }

// The hot path: two blocks.
template <class R, class C>
struct LaneBlocks {
  using Codec = LaneCodec<C>;
  using Shared = typename Codec::Shared;
  static constexpr int K = R::kStates;
  template <int k>
  struct State {
    static constexpr bool kSigned = ((R::kSigned >> k) & 1) != 0;
    static constexpr int kOfBlock = kScales<C, kSigned>;  // scales
    static constexpr int kLanesOfScale = kLanes / (kOfBlock ? kOfBlock : 1);
    using Code = CodeOf<C, kSigned>;
    using Codes = typename Codec::template Codes<kSigned>;
    // The largest magnitude that is in range, and the least but 0, as bits without the sign (a signed state's bits are
    // shifted for it), less 1. Others are left to the slow path. See Real and LaneCodec.
    static constexpr float kMost = kSigned ? (C::kScaled ? 0x1p22f : 0x1p60f) : 0x1p24f;
    static constexpr u32 kLeast = kSigned ? (31u << 24) - 1u : (27u << 23) - 1u;  // of 2^-96, of 2^-100
  };
  template <int... k>
  static auto codes_of_states(std::integer_sequence<int, k...>) -> LaneStates<typename State<k>::Codes...>;
  using StateCodes = decltype(codes_of_states(std::make_integer_sequence<int, K>{}));

  struct Formats {
    StateFormat of[K ? K : 1];
  };
  LT_FN Formats formats() {
    Formats all{};
    each<K>([&](auto k) { all.of[k] = {kCodeBits<typename State<k>::Code>, State<k>::kOfBlock}; });
    return all;
  }

  // Whether all of an item's blocks may take this path.
  LT_FN bool takes(const DeviceItem& item, const typename R::Args& args) {
    bool yes = item.param.dim_count == 0 && item.grad.dim_count == 0;
    // A lane's neighbours share their random bits, and a block its keys.
    if (item.stochastic || (item.master.kind && residual_bits(item.master.kind) == 0))
      yes = yes && ((item.first_index | item.row_stride) & (kBlock - 1)) == 0;
    each<K>([&](auto k) {
      if constexpr (!kHasNearest<C, State<k>::kSigned>) yes = yes && ((item.stochastic >> k) & 1) != 0;
    });
    if constexpr (kDivides<R>)
      yes = yes && args.eps >= 0x1p-60f && args.eps <= 0x1p10f && args.inverse_sqrt_bias >= 0.f &&
            args.inverse_sqrt_bias <= 0x1p12f && args.step_size >= 0x1p-27f;
    if constexpr (std::is_same_v<R, Lion>) yes = yes && args.lr >= 0x1p-100f;
    return yes;
  }

  static constexpr bool kLooksAtMost = K > 0 && (C::kScaled || kDivides<R>);
  static constexpr bool kLooksAtLeast = !kIsFast && kDivides<R>;

  // False, and nothing done, if an operand is out of range: the same for the warp.
  LT_FN bool step(const Tile& tile, const typename R::Args& args, const Shared& shared, const Form& form,
                  const LaneAt& at) {
    const bool is_common = form.wide && tile.is_common;
    LaneWeights weights;
    ElementWords grad;
    StateCodes codes;
    const auto load = [&](const Form& as) {
      weights.load(tile, as, at);
      load_elements(grad.word, tile.grad, as.grad, as.wide, at);
      each<K>([&](auto k) { load_codes<k>(tile, as.wide, at, codes.of(k).word); });
    };
    is_common ? load(common_form()) : load(form);
    float scale[K ? K : 1] = {};
    if constexpr (C::kScaled) each<K>([&](auto k) { scale[k] = __ldcs(tile.state[k].scales + scale_at<k>(at)); });

    float p[kLaneElements], g[kLaneElements], state[K ? K : 1][kLaneElements];
    const auto unpack_all = [&](const Form& as) {
      weights.get(tile, as, at, p);
      unpack(g, grad.word, as.grad);
    };
    is_common ? unpack_all(common_form()) : unpack_all(form);
    if (tile.grad_scale != 1.f) {
#pragma unroll
      for (int e = 0; e < kLaneElements; ++e) g[e] = g[e] * tile.grad_scale;
    }
#pragma unroll
    for (int e = 0; e < kLaneElements; ++e) {
      using F = Float<R>;
      F s[K ? K : 1];
      each<K>([&](auto k) {
        const float x = codes.of(k).get(shared, e);
        s[k] = C::kScaled ? x * scale[k] : x;
      });
      p[e] = value_of(R::template step<F>(p[e], g[e], s, args));
      each<K>([&](auto k) { state[k][e] = value_of(s[k]); });
    }
    float most[K ? K : 1] = {};
    if (!find_most(form, at, state, most)) return false;
    each<K>([&](auto k) {
      // A positive second moment is never stored as 0.
      if constexpr (std::is_same_v<C, Bf16> && !State<k>::kSigned && !kDivides<R>)
        for (float& x : state[k]) x = at_least_a_code(x);
      encode<k>(tile, shared, at, state[k], most[k], codes.of(k));
      if constexpr (C::kScaled)
        if (at.there && threadIdx.x % State<k>::kLanesOfScale == 0)
          __stcs(reinterpret_cast<float*>(
                     reinterpret_cast<u8*>(const_cast<float*>(tile.state[k].scales + scale_at<k>(at))) +
                     tile.write_offset),
                 State<k>::Codes::scale(most[k]));
    });
    const auto store = [&](const Form& as) {
      each<K>([&](auto k) { store_codes<k>(tile, as.wide, at, codes.of(k).word); });
      weights.store(tile, as, at, p);
    };
    is_common ? store(common_form()) : store(form);
    return true;
  }

 private:
  template <int k>
  LT_FN int scale_at(const LaneAt& at) {
    constexpr int kOfBlock = State<k>::kOfBlock;
    return at.block * kOfBlock + (kOfBlock > 1 ? static_cast<int>(threadIdx.x % kLanes / State<k>::kLanesOfScale) : 0);
  }

  template <int k, int kWords>
  LT_FN void load_codes(const Tile& tile, bool wide, const LaneAt& at, u32 (&word)[kWords]) {
    using Code = typename State<k>::Code;
    load_lane<kWords, static_cast<int>(sizeof(Code))>(word, tile.state[k].codes + i64{at.element} * kCodeBits<Code> / 8,
                                                      wide, at.count / kCodesOf<Code>);
  }
  template <int k, int kWords>
  LT_FN void store_codes(const Tile& tile, bool wide, const LaneAt& at, const u32 (&word)[kWords]) {
    using Code = typename State<k>::Code;
    u8* const to = const_cast<u8*>(tile.state[k].codes) + tile.write_offset;
    store_lane<kWords, static_cast<int>(sizeof(Code))>(word, to + i64{at.element} * kCodeBits<Code> / 8, wide,
                                                       at.count / kCodesOf<Code>);
  }

  // The largest magnitudes of each state that share a scale; false if one of the warp's is out of range. All as bits,
  // which are in the order of magnitudes, NaN behind them; those of signed states shifted, without the sign.
  LT_FN bool find_most(const Form& form, const LaneAt& at, float (&state)[K ? K : 1][kLaneElements],
                       float (&most)[K ? K : 1]) {
    if constexpr (!kLooksAtMost && !kLooksAtLeast) return true;
    if (!form.wide) {
#pragma unroll
      for (int e = 0; e < kLaneElements; ++e) each<K>([&](auto k) { state[k][e] = e < at.count ? state[k][e] : 0.f; });
    }
    // No branch on a lane's elements, of which the compiler would make two copies of all.
    const u32 whole = at.count ? ~0u : 0u;
    bool out = false;
    each<K>([&](auto k) {
      constexpr int kShift = State<k>::kSigned ? 1 : 0;
      u32 least = ~0u, largest = 0;
#pragma unroll
      for (int e = 0; e < kLaneElements; ++e) {
        const u32 u = bits(state[k][e]) << kShift;
        if constexpr (kLooksAtMost) largest = u > largest ? u : largest;
        if constexpr (kLooksAtLeast) least = min_but_zero(least, u);
      }
      if constexpr (kLooksAtMost) {
        largest &= whole;
        out = out | (largest > bits(State<k>::kMost) << kShift);
      }
      if constexpr (kLooksAtLeast) out = out | ((least | ~whole) < State<k>::kLeast);
      if constexpr (C::kScaled) {
        for (int distance = State<k>::kLanesOfScale / 2; distance > 0; distance /= 2) {
          const u32 other = __shfl_xor_sync(kAllLanes, largest, distance);
          largest = other > largest ? other : largest;
        }
        // A block of zeros has no reciprocal; one of denormals or nearly so has none in range.
        out = out | (largest - 1 < (bits(0x1p-96f) << kShift) - 1);
      }
      most[k] = as_float(largest >> kShift);
    });
    return !__any_sync(kAllLanes, out);
  }

  template <int k>
  LT_FN void encode(const Tile& tile, const Shared& shared, const LaneAt& at, const float (&state)[kLaneElements],
                    float absmax, typename State<k>::Codes& codes) {
    constexpr bool kNearest = kHasNearest<C, State<k>::kSigned>;
    if (!kNearest || (kHasRandom<C> && ((tile.stochastic >> k) & 1) != 0)) {
      if constexpr (kHasRandom<C>) {
        const float inverse = State<k>::Codes::inverse(absmax);
        const LaneRandom of{at.index, tile.key[at.half][k]};
#pragma unroll
        for (int e = 0; e < kLaneElements; e += 4) {
          u32 random[2];
          of.four(e, random);
          codes.template round_four<kDivides<R>>(shared, e, state + e, inverse, random);
        }
      }
    } else if constexpr (kNearest) {
      const float factor = State<k>::Codes::factor(absmax);
#pragma unroll
      for (int e = 0; e < kLaneElements; e += 4) codes.encode_four(shared, e, state + e, factor);
    }
  }
};

template <class R, class C, class Lanes>
LT_FN void step_tiles(const StepArguments& a) {
  __shared__ typename Lanes::Shared shared;
  __shared__ Tile of_warp[cuda_kernels::kWarps];
  if (is_void(a.replay)) return;
  Lanes::Codec::fill(shared, a.tables);
  __syncthreads();
  const auto* const tables = static_cast<const typename C::Tables*>(a.tables);
  Tile& tile = of_warp[threadIdx.x / 32];
  for (i64 t = item_id() / 32; t < a.tiles; t += item_count() / 32) {
    const i64 of = find_item_by_warp(a.starts, a.count, t);
    const DeviceItem& item = a.items[of];
    if (is_stopped(item)) continue;
    typename R::Args args;
    __builtin_memcpy(&args, item.args, sizeof args);
    __syncwarp();  // all are done with the tile before
    if (threadIdx.x % 32 == 0)
      tile.fill(item, (t - a.starts[of]) * cuda_kernels::kTileBlocks, Lanes::takes(item, args), Lanes::formats().of);
    __syncwarp();
    for (int b = 0; b < tile.blocks; b += 2) {
      const LaneAt at = tile.place(b);
      Form form = tile.form;
      // Rows may begin or end where no lane's elements do.
      const bool not_whole = ((at.element | at.count) & (kLaneElements - 1)) != 0;
      form.wide = !__any_sync(kAllLanes, !form.wide || not_whole);
      if (!tile.hot || !Lanes::step(tile, args, shared, form, at)) slow_blocks<R, C>(tile.slow_block(at), tables);
      tile.advance();
    }
  }
}
