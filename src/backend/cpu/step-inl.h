// The only CPU driver of steps: decode -> rule -> absmax -> encode -> store, over blocks of 256 elements. Every rule,
// codec and pair of element types uses it on every instruction set; with one-lane vectors it is the scalar reference.

// Calls f(std::integral_constant<int, k>) for k = 0 .. K-1.
template <int K, class Fn>
HWY_INLINE void each(Fn&& f) {
  [&]<int... k>(std::integer_sequence<int, k...>) { (f(std::integral_constant<int, k>{}), ...); }
  (std::make_integer_sequence<int, K>{});
}

template <class R, class C, int k>
using StateCodec = CpuCodec<C, ((R::kSigned >> k) & 1) != 0>;

// The codecs of a rule's states, as a list that `each` can index.
template <class R, class C, class = std::make_integer_sequence<int, R::kStates>>
struct StateCodecs;
template <class R, class C, int... k>
struct StateCodecs<R, C, std::integer_sequence<int, k...>> : std::tuple<StateCodec<R, C, k>...> {};

template <class R, class C, class P, class G>
struct StepDriver {
  static constexpr int K = R::kStates;
  static constexpr float kLargestState = 0x1.fffffep127f;
  static constexpr int kStored = K ? K : 1;  // arrays cannot have size 0
  template <int k>
  static constexpr bool kSigned = ((R::kSigned >> k) & 1) != 0;
  template <int k>
  using Code = CodeOf<C, kSigned<k>>;
  // The size of a block's codes in bytes, because the code types of states may differ.
  template <int k>
  static constexpr int kCodeBytes = kBlock* kCodeBits<Code<k>> / 8;
  template <int k>
  static constexpr int kParts = kScales<C, kSigned<k>>;  // parts of a block; the elements of a part share a scale
  static constexpr int kMostParts = [] {
    const int most = kScales<C, true> > kScales<C, false> ? kScales<C, true> : kScales<C, false>;
    return most ? most : 1;
  }();

  StateCodecs<R, C> codecs{};
  typename R::Args args;
  vf grad_scale;
  std::array<TileRounding, kStored> rounding;

  explicit StepDriver(const StepRun& run)
      : grad_scale(run.grad_scale), rounding(roundings(run, std::make_integer_sequence<int, kStored>())) {
    __builtin_memcpy(&args, run.args, sizeof args);  // a local copy, because stores of bytes may alias anything
  }

  template <int... k>
  static std::array<TileRounding, kStored> roundings(const StepRun& run, std::integer_sequence<int, k...>) {
    return {TileRounding(((run.stochastic >> k) & 1) != 0, RandomKey{run.key[k][0], run.key[k][1]})...};
  }

  // A block after the rule. Its codes need the absmax, which is known only at the block's end.
  struct Stage {
    alignas(64) float values[kStored][kBlock];
    float inverse[kStored][kMostParts];
    u8* codes[kStored];
    u32 index;
  };

  template <int k>
  HWY_INLINE static Code<k>* code_at(u8* codes, int at) {
    return reinterpret_cast<Code<k>*>(codes) + code_count<Code<k>>(at);
  }

  // Decodes a block of `tiles` * 64 elements, and runs rule and absmax into `stage`. With kLast, it encodes the whole
  // previous block `last` between its own tiles, because that work does not wait for this block's divisions and loads.
  template <bool kLast>
  HWY_INLINE void block(P* p, const G* g, u8* const (&codes)[kStored], float* const (&scales)[kStored], int tiles,
                        u32 index, Stage& stage, const Stage* last) const {
    constexpr int kTilesOfPart = kBlock / kTile / kMostParts;
    vf largest[kStored];
    for (int k = 0; k < K; ++k) largest[k] = vf(0.f), stage.codes[k] = codes[k];
    stage.index = index;
    for (int part = 0; part < kMostParts; ++part) {
      const int end = kMostParts == 1 || tiles < (part + 1) * kTilesOfPart ? tiles : (part + 1) * kTilesOfPart;
      for (int t = part * kTilesOfPart; t < end; ++t) {
        const int at = t * kTile;
        if constexpr (C::kScaled) prefetch(g + at), prefetch(p + at);
        vf s[kStored][kTileVectors];
        each<K>([&](auto k) {
          if constexpr (!kDecodesVectors<StateCodec<R, C, k>>)
            std::get<k>(codecs).decode(code_at<k>(codes[k], at), scale_of<k>(scales, part), s[k]);
        });
        vf next[kTileVectors];
        for (int i = 0; i < kTileVectors; ++i) {
          const int e = at + i * kLanes;
          vf state[kStored];
          each<K>([&](auto k) {
            if constexpr (kDecodesVectors<StateCodec<R, C, k>>)
              state[k] = std::get<k>(codecs).decode_vector(code_at<k>(codes[k], e), scale_of<k>(scales, part));
            else
              state[k] = s[k][i];
          });
          next[i] = R::template step<vf>(load(p + e), load(g + e) * grad_scale, state, args);
          for (int k = 0; k < K; ++k) {
            if constexpr (C::kScaled) largest[k] = max_abs(largest[k], state[k]);
            store(state[k], stage.values[k] + e);
          }
        }
        // Rounding to 16 bits waits for the divisions, so it comes last (Zen 4: 4 % with bf16; stores of floats would
        // lose 1 %).
        if constexpr (sizeof(P) != 2) store_tile(next, p + at);
        if constexpr (!C::kScaled) encode_tile(stage, t, 0);
        if constexpr (kLast) encode_tile(*last, t, part);
        if constexpr (sizeof(P) == 2) store_tile(next, p + at);
      }
      if constexpr (C::kScaled) {
        each<K>([&](auto k) {
          if (kParts<k> < kMostParts && part + 1 < kMostParts) return;  // its scale covers the whole block
          float absmax = reduce_max(largest[k]);
          const int begin = kParts<k> == kMostParts ? part * kTilesOfPart : 0;
          if (HWY_UNLIKELY(!(absmax <= kLargestState)))
            absmax = saturate(stage.values[k] + begin * kTile, (end - begin) * kTile);
          const BlockScale of = block_scale<C, kSigned<k>>(absmax);
          scales[k][part_of<k>(part)] = of.scale;
          stage.inverse[k][part_of<k>(part)] = of.inverse;
          if (part + 1 < kMostParts) largest[k] = vf(0.f);
        });
      }
    }
  }

  // Returns the index of the scale for `part` among the block's scales of state k.
  template <int k>
  HWY_INLINE static int part_of(int part) {
    return kParts<k> == kMostParts ? part : 0;
  }

  template <int k>
  HWY_INLINE static float scale_of(float* const (&scales)[kStored], int part) {
    return C::kScaled ? scales[k][part_of<k>(part)] : 1.f;
  }

  // Begins all states before it ends the first (codec-inl.h). Elements left to encode_exactly come last, because a call
  // in between, however rare, would force registers into memory. begun: the results of the first states.
  template <class... Begun>
  HWY_INLINE void encode_tile(const Stage& stage, int t, int part, const Begun&... begun) const {
    if constexpr (constexpr int k = sizeof...(Begun); k < K) {
      const auto next = begin_encoding(std::get<k>(codecs), stage.values[k] + t * kTile, inverse_of<k>(stage, part));
      encode_tile(stage, t, part, begun..., next);
    } else {
      u64 unsure[kStored] = {}, any = 0;
      end_encoding<0>(stage, t, part, unsure, begun...);
      for (int i = 0; i < K; ++i) any |= unsure[i];
      if (HWY_UNLIKELY(any != 0)) {
        each<K>([&](auto i) {
          if constexpr (kHasHalves<StateCodec<R, C, i>>)
            std::get<i>(codecs).encode_exactly(unsure[i], stage.values[i] + t * kTile, inverse_of<i>(stage, part),
                                               rounding[i], stage.index + static_cast<u32>(t * kTile),
                                               code_at<i>(stage.codes[i], t * kTile));
        });
      }
    }
  }

  template <int k>
  HWY_INLINE void end_encoding(const Stage&, int, int, u64 (&)[kStored]) const {}
  // Ends state k and the states after it.
  template <int k, class Begun, class... Others>
  HWY_INLINE void end_encoding(const Stage& stage, int t, int part, u64 (&unsure)[kStored], const Begun& begun,
                               const Others&... others) const {
    const auto& codec = std::get<k>(codecs);
    const int at = t * kTile;
    const u32 index = stage.index + static_cast<u32>(at);
    if constexpr (kHasHalves<StateCodec<R, C, k>>)
      unsure[k] = codec.end(begun, stage.values[k] + at, rounding[k], index, code_at<k>(stage.codes[k], at));
    else
      codec.encode(stage.values[k] + at, inverse_of<k>(stage, part), rounding[k], index,
                   code_at<k>(stage.codes[k], at));
    end_encoding<k + 1>(stage, t, part, unsure, others...);
  }

  template <int k>
  HWY_INLINE static float inverse_of(const Stage& stage, int part) {
    return C::kScaled ? stage.inverse[k][part_of<k>(part)] : 0.f;
  }

  // A run executes this code only once. Inlined, it would be a fifth of each kernel's code.
  HWY_NOINLINE void encode(const Stage& stage, int tiles) const {
    for (int t = 0; t < tiles; ++t) encode_tile(stage, t, t * kMostParts / (kBlock / kTile));
  }
  HWY_NOINLINE void first_block(P* p, const G* g, u8* const (&codes)[kStored], float* const (&scales)[kStored],
                                int tiles, u32 index, Stage& stage) const {
    block<false>(p, g, codes, scales, tiles, index, stage, nullptr);
  }

  // Prefetches the tile kAhead bytes ahead, perhaps past the end, because a block's arithmetic outlasts the processor's
  // lookahead and the next page is cold. (Zen 4, dynamic8 AdamW from memory: gradients gain 2 %, or 5 % with AVX2;
  // parameters 10 % more; codes, or twice the distance, gain less or lose.)
  template <class T>
  HWY_INLINE static void prefetch(const T* tile) {
    constexpr int kAhead = 2048, kLine = 64;
    for (int b = 0; b < kTile * static_cast<int>(sizeof(T)); b += kLine)
      __builtin_prefetch(reinterpret_cast<const char*>(tile) + kAhead + b);
  }

  // Replaces states that overflowed (such as a weight of 1e20 under an L2 penalty) by the largest float; otherwise the
  // scale would be infinite and the whole block NaN. Returns the new absmax.
  static HWY_NOINLINE float saturate(float* values, int n) {
    float absmax = 0;
    for (int i = 0; i < n; ++i) {
      if (values[i] > kLargestState) values[i] = kLargestState;
      if (values[i] < -kLargestState) values[i] = -kLargestState;
      if (absmax < __builtin_fabsf(values[i])) absmax = __builtin_fabsf(values[i]);
    }
    return absmax;
  }

  // Steps a block with fewer tiles.
  void short_block(P* p, const G* g, u8* const (&codes)[kStored], float* const (&scales)[kStored], int tiles,
                   u32 index) const {
    Stage stage;
    first_block(p, g, codes, scales, tiles, index, stage);
    if constexpr (C::kScaled) encode(stage, tiles);
  }

  // Steps a block whose last tile is short: the same code on a padded copy, with zero gradient, parameter and state in
  // the padding. (Second moments without a zero code get the least code, which stays below every other value.)
  void tail(P* p, const G* g, u8* const (&codes)[kStored], float* const (&scales)[kStored], int n, u32 index) const {
    alignas(64) P padded_p[kBlock];
    alignas(64) G padded_g[kBlock];
    alignas(64) u8 padded[kStored][kBlock * sizeof(float)];
    const int tiles = (n + kTile - 1) / kTile;
    u8* padded_codes[kStored] = {};
    for (int i = n; i < tiles * kTile; ++i) padded_p[i] = P{}, padded_g[i] = G{};
    __builtin_memcpy(padded_p, p, static_cast<size_t>(n) * sizeof(P));
    __builtin_memcpy(padded_g, g, static_cast<size_t>(n) * sizeof(G));
    each<K>([&](auto k) {
      padded_codes[k] = padded[k];
      const Code<k> zero = StateCodec<R, C, k>::zero_code();
      const auto stored = static_cast<size_t>(code_count<Code<k>>(n)) * sizeof zero;
      for (size_t at = stored; at < static_cast<size_t>(code_count<Code<k>>(tiles * kTile)) * sizeof zero;
           at += sizeof zero)
        __builtin_memcpy(padded[k] + at, &zero, sizeof zero);
      __builtin_memcpy(padded[k], codes[k], stored);
    });
    short_block(padded_p, padded_g, padded_codes, scales, tiles, index);
    __builtin_memcpy(p, padded_p, static_cast<size_t>(n) * sizeof(P));
    each<K>([&](auto k) {
      __builtin_memcpy(codes[k], padded[k], static_cast<size_t>(code_count<Code<k>>(n)) * sizeof(Code<k>));
    });
  }

  static void run(const StepRun& run) {
    const StepDriver driver(run);
    P* p = static_cast<P*>(run.param);
    const G* g = static_cast<const G*>(run.grad);
    u8* codes[kStored] = {};
    float* scales[kStored] = {};
    for (int k = 0; k < K; ++k) codes[k] = static_cast<u8*>(run.codes[k]), scales[k] = run.scales[k];
    // Blocks whose codes have a scale are encoded one block late.
    Stage stages[2];
    Stage *stage = stages, *last = stages + 1;
    int64_t done = 0;
    const auto next_block = [&] {
      each<K>([&](auto k) { codes[k] += kCodeBytes<k>, scales[k] += kParts<k>; });
      done += kBlock;
      std::swap(stage, last);
    };
    const bool full = run.n >= kBlock;
    if (C::kScaled && full) {
      driver.first_block(p, g, codes, scales, kBlock / kTile, run.index, *stage);
      next_block();
    }
    while (done + kBlock <= run.n) {
      driver.template block<C::kScaled>(p + done, g + done, codes, scales, kBlock / kTile,
                                        run.index + static_cast<u32>(done), *stage, last);
      next_block();
    }
    if (C::kScaled && full) driver.encode(*last, kBlock / kTile);
    const int rest = static_cast<int>(run.n - done);
    const u32 index = run.index + static_cast<u32>(done);
    if (rest % kTile)
      driver.tail(p + done, g + done, codes, scales, rest, index);
    else if (rest)
      driver.short_block(p + done, g + done, codes, scales, rest / kTile, index);
  }
};
