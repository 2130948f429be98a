// The hot path of steps: two blocks by a warp, 16 lanes each, whose 16 elements are in registers. Included in the
// namespace of a .cu file after tile-inl.h, weights-inl.h, lane_dynamic8-inl.h and real-inl.h.

#ifdef LT_CUDA_FAST
inline constexpr bool kIsFast = true;
#else
inline constexpr bool kIsFast = false;
#endif

// Rules that divide a first moment by the square root of a second one: operands must be in range for Real.
template <class R>
inline constexpr bool kDivides = std::is_base_of_v<AdamBase, R> || std::is_base_of_v<Lamb, R>;
// Whether its steps may be approximate in fast files.
template <class R>
inline constexpr bool kHasFast = std::is_base_of_v<AdamBase, R>;

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

// The least positive bfloat16 for smaller positive values.
LT_FN float at_least_a_code(float second_moment) {
  const u32 u = bits(second_moment), least = (u < 1u ? u : 1u) << 16;
  return as_float(u > least ? u : least);
}

// Rules but LAMB whose steps are never -0 where LaneBlocks takes them: Real's move does without the addition that would
// turn it. With a step size of 2^-27, quotients of 2^-121 or more make steps of 2^-148 or more; Lion's are multiples of
// lr.
template <class R>
using Float = std::conditional_t<kDivides<R> || std::is_same_v<R, Lion>, Real<std::is_base_of_v<Lamb, R>>, float>;
LT_FN float value_of(float x) { return x; }
template <bool kHasZero>
LT_FN float value_of(Real<kHasZero> x) {
  return x.x;
}
// LAMB multiplies a first moment before it divides it, by 2^10 at most.
template <class R>
inline constexpr float kMostMoment = std::is_base_of_v<Lamb, R> ? 0x1p50f : 0x1p60f;

// kStates: as many as are read and written.
template <class R, class C, int kStates = R::kStates>
struct LaneBlocks {
  using Codec = LaneCodec<C>;
  using Shared = typename Codec::Shared;
  static constexpr int K = kStates;
  template <int k>
  struct State {
    static constexpr bool kSigned = ((R::kSigned >> k) & 1) != 0;
    static constexpr int kOfBlock = kScales<C, kSigned>;  // scales
    static constexpr int kLanesOfScale = kLanes / (kOfBlock ? kOfBlock : 1);
    using Code = CodeOf<C, kSigned>;
    using Codes = typename Codec::template Codes<kSigned>;
    // The largest magnitude in range, and the least nonzero one. Others take the slow path. See Real and LaneCodec.
    static constexpr float kMost = kSigned ? (C::kScaled ? 0x1p22f : kMostMoment<R>) : 0x1p24f;
    static constexpr float kLeast = kSigned ? 0x1p-96f : 0x1p-100f;
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

  // True if all of an item's blocks may take this path.
  LT_FN bool takes(const DeviceItem& item, const typename R::Args& args) {
    bool yes = item.param.dim_count == 0 && item.grad.dim_count == 0 && has_range(args);
    // A lane's neighbours share its random bits, and a block its keys.
    if (item.stochastic || (item.master.kind && residual_bits(item.master.kind) == 0))
      yes = yes && ((item.first_index | item.row_stride) & (kBlock - 1)) == 0;
    each<K>([&](auto k) {
      if constexpr (!kHasNearest<C, State<k>::kSigned>) yes = yes && ((item.stochastic >> k) & 1) != 0;
    });
    return yes;
  }
  // Whether arguments are such that Real may be used where states are in range.
  LT_FN bool has_range(const typename R::Args& args) {
    bool yes = true;
    if constexpr (kDivides<R>)
      yes = yes && args.eps >= 0x1p-60f && args.eps <= 0x1p10f && args.inverse_sqrt_bias >= 0.f &&
            args.inverse_sqrt_bias <= 0x1p12f;
    if constexpr (kHasFast<R>) yes = yes && args.step_size >= 0x1p-27f;
    if constexpr (std::is_base_of_v<Lamb, R>) yes = yes && args.inverse_bias >= 1.f && args.inverse_bias <= 0x1p10f;
    if constexpr (std::is_same_v<R, Lion>) yes = yes && args.lr >= 0x1p-100f;
    return yes;
  }

  static constexpr bool kLooksAtMost = K > 0 && (C::kScaled || kDivides<R>);
  // Whether blocks of small operands may be taken carefully: where the hot path looks for them.
  static constexpr bool kHasCareful = kLooksAtMost;
  static constexpr bool kLooksAtLeast = !kIsFast && kDivides<R>;

  // Whether a lane has registers for the next round's words beside this round's states, and for separate code for the
  // most common form: others would spill (tools/cubin_report.py).
  static constexpr bool kLoadsAhead =
      C::kScaled && (K < 2 || (K == 2 && std::is_same_v<C, Dynamic8> && !std::is_base_of_v<Lamb, R>));
  static constexpr bool kHasCommon = K <= 2;
  template <int... k>
  static constexpr bool have_one_scale(std::integer_sequence<int, k...>) {
    return ((State<k>::kOfBlock == 1) && ...);
  }
  // Whether a plain tile's scales are read and written together. With two states that costs the default step more
  // instructions than it saves sectors: on an H100 it was 1.2 % slower, while Lion's was 4 % faster.
  static constexpr bool kHolds = K == 1 && C::kScaled && have_one_scale(std::make_integer_sequence<int, K>{});

  struct Words {
    LaneWeights weights;
    ElementWords grad;
    StateCodes codes;
    float scale[K ? K : 1];
  };
  // Scales of a plain tile, which a warp reads and writes at once, whole sectors: in shared memory meanwhile.
  using Held = float[K ? K : 1][cuda_kernels::kTileBlocks];
  LT_FN void take_scales(const Tile& tile, Held& held) {
    const int lane = static_cast<int>(threadIdx.x % 32);
    if (lane < tile.blocks) each<K>([&](auto k) { held[k][lane] = __ldg(tile.state[k].scales + lane); });
    __syncwarp();
  }
  // blocks: so many have put their own there.
  LT_FN void give_scales(const Tile& tile, const Held& held, int blocks) {
    __syncwarp();
    const int lane = static_cast<int>(threadIdx.x % 32);
    if (lane < tile.blocks && lane < blocks)
      each<K>([&](auto k) {
        u8* const to = reinterpret_cast<u8*>(const_cast<float*>(tile.state[k].scales + lane)) + tile.write_offset;
        *reinterpret_cast<float*>(to) = held[k][lane];
      });
  }
  LT_FN void load_held(const Tile& tile, const Form& form, const LaneAt& at, Words& words, const Held& held) {
    load_words(tile, form, at, words);
    each<K>([&](auto k) { words.scale[k] = held[k][at.block]; });
  }
  LT_FN void load(const Tile& tile, const Form& form, const LaneAt& at, Words& words) {
    load_words(tile, form, at, words);
    if constexpr (C::kScaled) each<K>([&](auto k) { words.scale[k] = __ldcs(tile.state[k].scales + scale_at<k>(at)); });
  }

  // Behind load, where a round is not wide: puts words into place (LaneBytes).
  LT_FN void settle(const Tile& tile, const Form& form, const LaneAt& at, Words& words) {
    words.weights.settle(tile, form, at);
    settle_elements(words.grad.word, tile.grad, form.grad, form.wide, at, tile.left);
    each<K>([&](auto k) { settle_codes<k>(tile, form.wide, at, words.codes.of(k).word); });
  }

  // False, and nothing done, if an operand is out of range: the same for the warp. kIsCommon: of the most common form,
  // without a factor of the gradient. Of the words nothing is left. next(): called once those are read.
  // kHeld: scales are in `held`. Careful tiles, of other forms, take operands of any magnitude down to 0, by IEEE
  // division and roots, as small gradients make them (an element after the other such steps took 9 times as long on an
  // H100).
  template <bool kIsCommon, bool kHeld = false, class Next>
  LT_FN bool step(const Tile& tile, const typename R::Args& args, const Shared& shared, const Form& form,
                  const LaneAt& at, Words& words, Next&& next, Held* held = nullptr) {
    const bool is_careful = !kIsCommon && kHasCareful && tile.careful;
    // By name: lambdas of C++20 capture structured bindings, but those of clang before 16 do not.
    LaneWeights& weights = words.weights;
    ElementWords& grad = words.grad;
    StateCodes& codes = words.codes;
    const auto& scale = words.scale;
    if (!form.wide) settle(tile, form, at, words);
    float p[kLaneElements], g[kLaneElements], state[K ? K : 1][kLaneElements];
    weights.get(tile, form, at, p);
    unpack(g, grad.word, form.grad);
    if (!kIsCommon && tile.grad_scale != 1.f) {
#pragma unroll
      for (int e = 0; e < kLaneElements; ++e) g[e] = g[e] * tile.grad_scale;
    }
    const auto update = [&](auto number) {
      using F = decltype(number);
#pragma unroll
      for (int e = 0; e < kLaneElements; ++e) {
        F s[K ? K : 1];
        each<K>([&](auto k) {
          const float x = codes.of(k).get(shared, e);
          s[k] = C::kScaled ? x * scale[k] : x;
        });
        p[e] = value_of(R::template step<F>(p[e], g[e], s, args));
        each<K>([&](auto k) { state[k][e] = value_of(s[k]); });
      }
    };
    if (is_careful && !std::is_same_v<Float<R>, float>)
      update(0.f);
    else
      update(Float<R>());
    if constexpr (kIsCommon) pack<bf16>(weights.word, p);
    next();
    float most[K ? K : 1] = {};
    if (!find_most(form, is_careful, at, state, most)) return false;
    each<K>([&](auto k) {
      // A positive second moment is never stored as 0.
      if constexpr (std::is_same_v<C, Bf16> && !State<k>::kSigned) {
        if (is_careful || !kDivides<R>)
          for (float& x : state[k]) x = at_least_a_code(x);
      }
      encode<k>(tile, shared, is_careful, at, state[k], most[k], codes.of(k));
      if constexpr (C::kScaled) {
        if (!at.there || threadIdx.x % State<k>::kLanesOfScale != 0) return;
        if constexpr (kHeld)
          (*held)[k][at.block] = State<k>::Codes::scale(most[k]);
        else
          __stcs(reinterpret_cast<float*>(
                     reinterpret_cast<u8*>(const_cast<float*>(tile.state[k].scales + scale_at<k>(at))) +
                     tile.write_offset),
                 State<k>::Codes::scale(most[k]));
      }
    });
    each<K>([&](auto k) { store_codes<k>(tile, form.wide, at, codes.of(k).word); });
    if constexpr (kIsCommon)
      store_elements(weights.word, tile.param, form.param, form.wide, at);
    else
      weights.store(tile, form, at, p);
    return true;
  }

 private:
  template <int k>
  LT_FN int scale_at(const LaneAt& at) {
    constexpr int kOfBlock = State<k>::kOfBlock;
    return at.block * kOfBlock + (kOfBlock > 1 ? static_cast<int>(threadIdx.x % kLanes / State<k>::kLanesOfScale) : 0);
  }

  LT_FN void load_words(const Tile& tile, const Form& form, const LaneAt& at, Words& words) {
    words.weights.load(tile, form, at);
    load_elements(words.grad.word, tile.grad, form.grad, form.wide, at, tile.left);
    each<K>([&](auto k) { load_codes<k>(tile, form.wide, at, words.codes.of(k).word); });
  }

  // Bytes of codes of so many elements.
  template <int k>
  LT_FN int code_bytes(int elements) {
    return elements * kCodeBits<typename State<k>::Code> / 8;
  }
  template <int k, int kWords>
  LT_FN void load_codes(const Tile& tile, bool wide, const LaneAt& at, u32 (&word)[kWords]) {
    using Code = typename State<k>::Code;
    load_lane<kWords, static_cast<int>(sizeof(Code))>(word, tile.state[k].codes, code_bytes<k>(at.element), wide,
                                                      at.count / kCodesOf<Code>, code_bytes<k>(tile.left));
  }
  template <int k, int kWords>
  LT_FN void settle_codes(const Tile& tile, bool wide, const LaneAt& at, u32 (&word)[kWords]) {
    using Code = typename State<k>::Code;
    settle_lane<kWords, static_cast<int>(sizeof(Code))>(word, tile.state[k].codes, code_bytes<k>(at.element), wide,
                                                        at.count / kCodesOf<Code>, code_bytes<k>(tile.left));
  }
  template <int k, int kWords>
  LT_FN void store_codes(const Tile& tile, bool wide, const LaneAt& at, const u32 (&word)[kWords]) {
    using Code = typename State<k>::Code;
    u8* const to = const_cast<u8*>(tile.state[k].codes) + tile.write_offset;
    store_lane<kWords, static_cast<int>(sizeof(Code))>(word, to, code_bytes<k>(at.element), wide,
                                                       at.count / kCodesOf<Code>);
  }

  // The largest magnitudes of each state that share a scale; false if one of the warp's is out of range. All as bits,
  // which are in the order of magnitudes, NaN behind them; those of signed states shifted, without the sign.
  LT_FN bool find_most(const Form& form, bool careful, const LaneAt& at, float (&state)[K ? K : 1][kLaneElements],
                       float (&most)[K ? K : 1]) {
    if constexpr (!kLooksAtMost && !kLooksAtLeast) return true;
    if (!form.wide) {
#pragma unroll
      for (int e = 0; e < kLaneElements; ++e) each<K>([&](auto k) { state[k][e] = e < at.count ? state[k][e] : 0.f; });
    }
    // No branch on a lane's elements: the compiler would duplicate all the code.
    const u32 whole = at.count ? ~0u : 0u;
    bool out = false, has_less = false;
    each<K>([&](auto k) {
      u32 largest = 0, less = ~0u;
      if constexpr (kLooksAtMost) largest = largest_of<State<k>::kSigned>(state[k]) & whole;
      if constexpr (kLooksAtMost) out = out | (largest > bits(State<k>::kMost));
      if constexpr (kLooksAtLeast) less = least_of<State<k>::kSigned>(state[k]) | ~whole;
      // Zeros are also less, and in range.
      if constexpr (kLooksAtLeast) has_less = has_less | (less < bits(State<k>::kLeast));
      if constexpr (C::kScaled) {
        for (int distance = State<k>::kLanesOfScale / 2; distance > 0; distance /= 2) {
          const u32 other = __shfl_xor_sync(kAllLanes, largest, distance);
          largest = other > largest ? other : largest;
        }
        // A block of zeros has no reciprocal, and one of near-denormals has none in range.
        out = out | (!careful && largest - 1 < bits(0x1p-96f) - 1);
      }
      most[k] = as_float(largest);
    });
    has_less = has_less && !careful;
    if (!__any_sync(kAllLanes, out || has_less)) return true;
    if constexpr (kLooksAtLeast) {
      if (has_less) {
        each<K>([&](auto k) {
          for (const float x : state[k]) out = out | ((bits(abs(x)) - 1 < bits(State<k>::kLeast) - 1) && whole != 0);
        });
      }
    }
    return !__any_sync(kAllLanes, out);
  }

  // The largest and the least magnitude, as bits; NaN behind all. Of numbers with signs the largest is the largest
  // positive one, which is above all negative ones as an integer with a sign, or the negative one that is the largest
  // without a sign; and the least likewise. Three at a time, which is one instruction.
  template <bool kSigned>
  LT_FN u32 largest_of(const float (&state)[kLaneElements]) {
    u32 largest = bits(state[0]);
    int positive = static_cast<int>(largest);
#pragma unroll
    for (int e = 1; e < kLaneElements; ++e) {
      const u32 u = bits(state[e]);
      largest = u > largest ? u : largest;
      positive = static_cast<int>(u) > positive ? static_cast<int>(u) : positive;
    }
    if constexpr (!kSigned) return largest;
    const u32 one = static_cast<u32>(positive) & 0x7fffffffu, other = largest & 0x7fffffffu;
    return one > other ? one : other;
  }
  template <bool kSigned>
  LT_FN u32 least_of(const float (&state)[kLaneElements]) {
    u32 least = bits(state[0]);
    int negative = static_cast<int>(least);
#pragma unroll
    for (int e = 1; e < kLaneElements; ++e) {
      const u32 u = bits(state[e]);
      least = u < least ? u : least;
      negative = static_cast<int>(u) < negative ? static_cast<int>(u) : negative;
    }
    if constexpr (!kSigned) return least;
    const u32 one = static_cast<u32>(negative) & 0x7fffffffu, other = least & 0x7fffffffu;
    return one < other ? one : other;
  }

  template <int k>
  LT_FN void encode(const Tile& tile, const Shared& shared, bool careful, const LaneAt& at,
                    float (&state)[kLaneElements], float absmax, typename State<k>::Codes& codes) {
    constexpr bool kNearest = kHasNearest<C, State<k>::kSigned>;
    const float inverse = careful ? State<k>::Codes::inverse_of_small(absmax, state) : State<k>::Codes::inverse(absmax);
    if (!kNearest || (kHasRandom<C> && ((tile.stochastic >> k) & 1) != 0)) {
      if constexpr (kHasRandom<C>) {
        const LaneRandom of{at.index, tile.key[at.half][k]};
#pragma unroll
        for (int e = 0; e < kLaneElements; e += 4) {
          u32 random[2];
          of.four(e, random);
          codes.template round_four<kDivides<R>>(shared, e, state + e, inverse, random);
        }
      }
    } else if constexpr (kNearest) {
      const float factor = State<k>::Codes::factor(inverse);
#pragma unroll
      for (int e = 0; e < kLaneElements; e += 4) codes.encode_four(shared, e, state + e, factor);
    }
  }
};
