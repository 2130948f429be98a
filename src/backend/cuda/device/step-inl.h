// The hot path of steps: a warp takes two blocks, and each lane has 16 elements in registers. Included in the namespace
// of a .cu file after tile-inl.h, weights-inl.h, lane_dynamic8-inl.h and real-inl.h.

#ifdef LT_CUDA_FAST
inline constexpr bool kIsFast = true;
#else
inline constexpr bool kIsFast = false;
#endif

// True if the rule divides a first moment by the root of a second moment; operands must then be in range for Real.
template <class R>
inline constexpr bool kDivides = std::is_base_of_v<AdamBase, R> || std::is_base_of_v<Lamb, R>;
// True if the rule's steps may be approximate in fast files.
template <class R>
inline constexpr bool kHasFast = std::is_base_of_v<AdamBase, R>;

// True if states of this kind may be rounded to nearest, and if they may be rounded stochastically.
template <class C, bool kSigned>
inline constexpr bool kHasNearest = [] {
  if constexpr (requires { C::kNeedsRandom; })
    return !C::kNeedsRandom[kSigned];
  else
    return true;
}();
template <class C>
inline constexpr bool kHasRandom = C::kError > 0;

// Raises positive values below the least positive bfloat16 to that number.
LT_FN float at_least_a_code(float second_moment) {
  const u32 u = bits(second_moment), least = (u < 1u ? u : 1u) << 16;
  return as_float(u > least ? u : least);
}

// Except for LAMB, steps of these rules are never -0 if LaneBlocks accepts them, so Real's move omits the addition that
// would change the sign. With a step size of 2^-27, quotients of 2^-121 or more give steps of 2^-148 or more; Lion's
// steps are multiples of lr.
template <class R>
using Float = std::conditional_t<kDivides<R> || std::is_same_v<R, Lion>, Real<std::is_base_of_v<Lamb, R>>, float>;
LT_FN float value_of(float x) { return x; }
template <bool kHasZero>
LT_FN float value_of(Real<kHasZero> x) {
  return x.x;
}
// LAMB multiplies a first moment by 2^10 at most before the division.
template <class R>
inline constexpr float kMostMoment = std::is_base_of_v<Lamb, R> ? 0x1p50f : 0x1p60f;

// How the lanes of a warp share two blocks.
enum class Round {
  kAny,      // each block has 16 lanes, with consecutive elements
  kCommon,   // as kAny, in the most common form, without a gradient factor
  kSectors,  // also in this form: all lanes share each block, in runs so short that each access takes whole
             // sectors
};

// kStates is the number of states that are read and written.
template <class R, class C, int kStates = R::kStates>
struct LaneBlocks {
  using Codec = LaneCodec<C>;
  using Shared = typename Codec::Shared;
  static constexpr int K = kStates;
  template <Round kRound>
  static constexpr int kLanesOfBlock = kRound == Round::kSectors ? 32 : kLanes;
  // The number of blocks of which a lane has elements in a round.
  template <Round kRound>
  static constexpr int kBlocks = kLanesOfBlock<kRound> / kLanes;
  // In rounds of whole sectors a lane's 16 bytes, of the states or of the weights, follow its neighbour's.
  static constexpr int kRun = K > 0 && kCodeBits<CodeOf<C, false>> == 32 ? 4 : 8;
  template <int k>
  struct State {
    static constexpr bool kSigned = ((R::kSigned >> k) & 1) != 0;
    static constexpr int kOfBlock = kScales<C, kSigned>;  // scales
    template <Round kRound>
    static constexpr int kLanesOfScale = kLanesOfBlock<kRound> / (kOfBlock ? kOfBlock : 1);
    using Code = CodeOf<C, kSigned>;
    using Codes = typename Codec::template Codes<kSigned>;
    // The largest and the least nonzero magnitude in range. Others take the slow path. See Real and LaneCodec.
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

  // Returns true if all of an item's blocks may take this path.
  LT_FN bool takes(const DeviceItem& item, const typename R::Args& args) {
    bool yes = item.param.dim_count == 0 && item.grad.dim_count == 0 && has_range(args);
    // Neighbouring lanes share random bits, and the elements of a block share keys.
    if (item.stochastic || (item.master.kind && residual_bits(item.master.kind) == 0))
      yes = yes && ((item.first_index | item.row_stride) & (kBlock - 1)) == 0;
    each<K>([&](auto k) {
      if constexpr (!kHasNearest<C, State<k>::kSigned>) yes = yes && ((item.stochastic >> k) & 1) != 0;
    });
    return yes;
  }
  // Returns true if Real may be used with these arguments when states are in range.
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
  // True if blocks with small operands may be taken carefully, that is, if the hot path looks for them.
  static constexpr bool kHasCareful = kLooksAtMost;
  static constexpr bool kLooksAtLeast = !kIsFast && kDivides<R>;

  // True if a lane has registers for the next round's words beside this round's states, and for separate code for the
  // most common form. Otherwise registers would spill (tools/cubin_report.py).
  static constexpr bool kLoadsAhead =
      C::kScaled && (K < 2 || (K == 2 && std::is_same_v<C, Dynamic8> && !std::is_base_of_v<Lamb, R>));
  static constexpr bool kHasCommon = K <= 2 && kHasBf16;

  struct Words {
    LaneWeights weights;
    ElementWords grad;
    StateCodes codes;
    float scale[K ? K : 1][kBlocks<Round::kSectors>];
  };
  LT_FN void load(const Tile& tile, const Form& form, const LaneAt& at, Words& words) {
    words.weights.load(tile, form, at);
    load_elements(words.grad.word, tile.grad, form.grad, form.wide, at, tile.left);
    each<K>([&](auto k) {
      load_codes<k>(tile, form.wide, at, words.codes.of(k).word);
      if constexpr (C::kScaled) words.scale[k][0] = __ldcs(tile.state[k].scales + scale_at<k, Round::kCommon>(at));
    });
  }

  // The scales of a tile, in shared memory, because a warp reads and writes whole sectors of scales at once. New scales
  // do not replace the old ones, which would need a barrier in each round.
  struct Held {
    static constexpr int kOfBlock = kScales<C, false> > kScales<C, true> ? kScales<C, false> : kScales<C, true>;
    using Scales = float[K ? K : 1][cuda_kernels::kTileBlocks * (kOfBlock ? kOfBlock : 1)];
    Scales before, after;
  };
  LT_FN void take_scales(const Tile& tile, Held& held) {
    each_scale(tile.blocks, [&](auto k, int i) { held.before[k][i] = __ldg(tile.state[k].scales + i); });
    __syncwarp();
  }
  // Writes the scales of the first `blocks` blocks, which have stored them in `held`.
  LT_FN void give_scales(const Tile& tile, const Held& held, int blocks) {
    __syncwarp();
    each_scale(blocks, [&](auto k, int i) { *written<k>(tile, i) = held.after[k][i]; });
  }
  LT_FN void load_sectors(const Tile& tile, const LaneAt& at, Words& words, const Held& held) {
    load_runs<16>(words.weights.word, tile.param, at);
    load_runs<16>(words.grad.word, tile.grad, at);
    each<K>([&](auto k) {
      load_runs<kCodeBits<typename State<k>::Code>>(words.codes.of(k).word, tile.state[k].codes, at);
      if constexpr (C::kScaled) {
#pragma unroll
        for (int n = 0; n < kBlocks<Round::kSectors>; ++n)
          words.scale[k][n] = held.before[k][scale_at<k, Round::kSectors>(at, n)];
      }
    });
  }

  // Puts words into place (LaneBytes). Call this after load() if a round is not wide.
  LT_FN void settle(const Tile& tile, const Form& form, const LaneAt& at, Words& words) {
    words.weights.settle(tile, form, at);
    settle_elements(words.grad.word, tile.grad, form.grad, form.wide, at, tile.left);
    each<K>([&](auto k) { settle_codes<k>(tile, form.wide, at, words.codes.of(k).word); });
  }

  // Steps the blocks of a round. If an operand is out of range, does nothing and returns false to the whole warp.
  // Consumes `words`, and calls next() when they have been read. `held` is for whole sectors. Careful tiles accept
  // operands of any magnitude down to 0, which small gradients cause, in rounds of any form, with IEEE division and
  // roots (such steps took 9 times as long element by element on an H100).
  template <Round kRound, class Next>
  LT_FN bool step(const Tile& tile, const typename R::Args& args, const Shared& shared, const Form& form,
                  const LaneAt& at, Words& words, Next&& next, Held* held = nullptr) {
    constexpr bool kIsCommon = kRound != Round::kAny;
    constexpr int kInBlock = kLaneElements / kBlocks<kRound>;
    const bool is_careful = !kIsCommon && kHasCareful && tile.careful;
    // References instead of structured bindings, which lambdas cannot capture in clang before 16.
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
          s[k] = C::kScaled ? x * scale[k][e / kInBlock] : x;
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
    float most[K ? K : 1][kBlocks<kRound>] = {};
    if (!find_most<kRound>(form, is_careful, at, state, most)) return false;
    each<K>([&](auto k) {
      // A positive second moment is never stored as 0.
      if constexpr (std::is_same_v<C, Bf16> && !State<k>::kSigned) {
        if (is_careful || !kDivides<R>)
          for (float& x : state[k]) x = at_least_a_code(x);
      }
      encode<k, kRound>(tile, shared, is_careful, at, state[k], most[k], codes.of(k));
      if constexpr (C::kScaled) {
        if (at.there && threadIdx.x % State<k>::template kLanesOfScale<kRound> == 0) {
#pragma unroll
          for (int n = 0; n < kBlocks<kRound>; ++n) {
            const float of_block = State<k>::Codes::scale(most[k][n]);
            if constexpr (kRound == Round::kSectors)
              held->after[k][scale_at<k, kRound>(at, n)] = of_block;
            else
              __stcs(written<k>(tile, scale_at<k, kRound>(at)), of_block);
          }
        }
      }
      if constexpr (kRound == Round::kSectors)
        store_runs<kCodeBits<typename State<k>::Code>>(codes.of(k).word,
                                                       const_cast<u8*>(tile.state[k].codes) + tile.write_offset, at);
      else
        store_codes<k>(tile, form.wide, at, codes.of(k).word);
    });
    if constexpr (kRound == Round::kSectors)
      store_runs<16>(weights.word, tile.param, at);
    else if constexpr (kIsCommon)
      store_elements(weights.word, tile.param, form.param, form.wide, at);
    else
      weights.store(tile, form, at, p);
    return true;
  }

 private:
  // `n` is the block's number among the lane's blocks.
  template <int k, Round kRound>
  LT_FN int scale_at(const LaneAt& at, int n = 0) {
    constexpr int kOfBlock = State<k>::kOfBlock, kLanesOfScale = State<k>::template kLanesOfScale<kRound>;
    const int in_block = static_cast<int>(threadIdx.x % kLanesOfBlock<kRound>) / kLanesOfScale;
    return (at.block + n) * kOfBlock + (kOfBlock > 1 ? in_block : 0);
  }
  // Returns the address to which scale i of the tile is written.
  template <int k>
  LT_FN float* written(const Tile& tile, int i) {
    return reinterpret_cast<float*>(reinterpret_cast<u8*>(const_cast<float*>(tile.state[k].scales + i)) +
                                    tile.write_offset);
  }
  // Calls work(k, i) for the lane's part of the scales of `blocks` blocks.
  template <class Work>
  LT_FN void each_scale(int blocks, Work&& work) {
    if constexpr (C::kScaled) {
      each<K>([&](auto k) {
#pragma unroll
        for (int r = 0; r < State<k>::kOfBlock; ++r) {
          const int i = r * 32 + static_cast<int>(threadIdx.x % 32);
          if (i < blocks * State<k>::kOfBlock) work(k, i);
        }
      });
    }
  }

  // For rounds of whole sectors: the offset of the lane's element e from its first, and loads of runs of elements.
  LT_FN int behind_first(int e) { return e / kRun * 32 * kRun + e % kRun; }
  template <int kBits>
  LT_FN void load_runs(u32* word, const u8* base, const LaneAt& at) {
#pragma unroll
    for (int e = 0; e < kLaneElements; e += kRun)
      load_whole<kRun * kBits / 32>(word + e * kBits / 32, base + (at.element + behind_first(e)) * kBits / 8);
  }
  template <int kBits>
  LT_FN void store_runs(const u32* word, u8* base, const LaneAt& at) {
#pragma unroll
    for (int e = 0; e < kLaneElements; e += kRun)
      store_whole<kRun * kBits / 32>(word + e * kBits / 32, base + (at.element + behind_first(e)) * kBits / 8);
  }

  // Returns the size of the codes of this many elements in bytes.
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

  // Finds, for each state, the largest magnitude among the values that share a scale. Returns false if a magnitude in
  // the warp is out of range. Compares bits without the sign, which have the order of magnitudes, with NaN above all.
  template <Round kRound>
  LT_FN bool find_most(const Form& form, bool careful, const LaneAt& at, float (&state)[K ? K : 1][kLaneElements],
                       float (&most)[K ? K : 1][kBlocks<kRound>]) {
    if constexpr (!kLooksAtMost && !kLooksAtLeast) return true;
    if (!form.wide) {
#pragma unroll
      for (int e = 0; e < kLaneElements; ++e) each<K>([&](auto k) { state[k][e] = e < at.count ? state[k][e] : 0.f; });
    }
    // Do not branch on a lane's elements, because the compiler would duplicate all the code.
    const u32 whole = at.count ? ~0u : 0u;
    bool out = false, has_less = false;
    each<K>([&](auto k) {
#pragma unroll
      for (int n = 0; n < kBlocks<kRound>; ++n) {
        constexpr int kInBlock = kLaneElements / kBlocks<kRound>;
        const float* const of_block = state[k] + n * kInBlock;
        u32 largest = 0, less = ~0u;
        if constexpr (kLooksAtMost) largest = largest_of<State<k>::kSigned, kInBlock>(of_block) & whole;
        if constexpr (kLooksAtLeast) less = least_of<State<k>::kSigned, kInBlock>(of_block) | ~whole;
        // Zeros are also less, but are in range.
        if constexpr (kLooksAtLeast) has_less = has_less | (less < bits(State<k>::kLeast));
        if constexpr (C::kScaled) {
          largest = max_of_lanes(largest, State<k>::template kLanesOfScale<kRound>);
          // A block of zeros has no reciprocal, and a block of near-denormals has none in range.
          out = out | (!careful && largest - 1 < bits(0x1p-96f) - 1);
        }
        if constexpr (kLooksAtMost) out = out | (largest > bits(State<k>::kMost));
        most[k][n] = as_float(largest);
      }
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

  // Return the largest and the least magnitude, as bits, with NaN above all. For signed numbers, the largest magnitude
  // is that of the positive number that is the largest signed integer or of the negative number that is the largest
  // unsigned integer; likewise the least. One instruction compares three numbers.
  template <bool kSigned, int n>
  LT_FN u32 largest_of(const float* state) {
    u32 largest = bits(state[0]);
    int positive = static_cast<int>(largest);
#pragma unroll
    for (int e = 1; e < n; ++e) {
      const u32 u = bits(state[e]);
      largest = u > largest ? u : largest;
      positive = static_cast<int>(u) > positive ? static_cast<int>(u) : positive;
    }
    if constexpr (!kSigned) return largest;
    const u32 one = static_cast<u32>(positive) & 0x7fffffffu, other = largest & 0x7fffffffu;
    return one > other ? one : other;
  }
  template <bool kSigned, int n>
  LT_FN u32 least_of(const float* state) {
    u32 least = bits(state[0]);
    int negative = static_cast<int>(least);
#pragma unroll
    for (int e = 1; e < n; ++e) {
      const u32 u = bits(state[e]);
      least = u < least ? u : least;
      negative = static_cast<int>(u) < negative ? static_cast<int>(u) : negative;
    }
    if constexpr (!kSigned) return least;
    const u32 one = static_cast<u32>(negative) & 0x7fffffffu, other = least & 0x7fffffffu;
    return one < other ? one : other;
  }

  template <int k, Round kRound>
  LT_FN void encode(const Tile& tile, const Shared& shared, bool careful, const LaneAt& at,
                    float (&state)[kLaneElements], const float (&most)[kBlocks<kRound>],
                    typename State<k>::Codes& codes) {
    using Codes = typename State<k>::Codes;
    constexpr bool kNearest = kHasNearest<C, State<k>::kSigned>;
    constexpr int kInBlock = kLaneElements / kBlocks<kRound>;
    float inverse[kBlocks<kRound>];
#pragma unroll
    for (int n = 0; n < kBlocks<kRound>; ++n)
      inverse[n] = careful ? Codes::inverse_of_small(most[n], state) : Codes::inverse(most[n]);
    if (!kNearest || (kHasRandom<C> && ((tile.stochastic >> k) & 1) != 0)) {
      if constexpr (kHasRandom<C>) {
        const LaneRandom of{at.index, tile.key[at.half][k]};
#pragma unroll
        for (int e = 0; e < kLaneElements; e += 4) {
          u32 random[2];
          of.four(kRound == Round::kSectors ? behind_first(e) : e, random);
          codes.template round_four<kDivides<R>>(shared, e, state + e, inverse[e / kInBlock], random);
        }
      }
    } else if constexpr (kNearest) {
#pragma unroll
      for (int n = 0; n < kBlocks<kRound>; ++n) inverse[n] = Codes::factor(inverse[n]);
#pragma unroll
      for (int e = 0; e < kLaneElements; e += 4) codes.encode_four(shared, e, state + e, inverse[e / kInBlock]);
    }
  }
};
