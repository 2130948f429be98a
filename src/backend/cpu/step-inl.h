// The one CPU driver: decode -> rule -> absmax -> encode -> store, over blocks of 256 elements. Every rule, codec and
// pair of element types goes through it, on every instruction set; with one-lane vectors it is the scalar reference.

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
  static constexpr int kStored = K ? K : 1;  // no arrays of size 0
  using Code = typename C::Code;

  StateCodecs<R, C> codecs{};
  typename R::Args args;
  vf grad_scale;
  Rounding rounding[kStored];

  explicit StepDriver(const StepRun& run) : grad_scale(run.grad_scale) {
    __builtin_memcpy(&args, run.args, sizeof args);  // a local copy: stores of bytes may alias anything
    for (int k = 0; k < K; ++k)
      rounding[k] = Rounding{((run.stochastic >> k) & 1) != 0, RandomKey{run.key[k][0], run.key[k][1]}};
  }

  // A block after the rule, before its codes are stored: they need the absmax, which is known at the block's end.
  struct Stage {
    alignas(64) float values[kStored][kBlock];
    float inverse[kStored];
    Code* codes[kStored];
    u32 index;
  };

  // One block of `tiles` * 64 elements: decode, rule and absmax into `stage`. Between its tiles those of the block
  // before it, `last`, are encoded (kLast; it has all its tiles): work that does not wait for this block's divisions
  // and loads.
  template <bool kLast>
  HWY_INLINE void block(P* p, const G* g, Code* const (&codes)[kStored], float* const (&scales)[kStored], int tiles,
                        u32 index, Stage& stage, const Stage& last) const {
    vf largest[kStored];
    for (int k = 0; k < K; ++k) largest[k] = vf(0.f), stage.codes[k] = codes[k];
    stage.index = index;
    for (int t = 0; t < tiles; ++t) {
      const int at = t * kTile;
      if constexpr (C::kScaled) prefetch(g + at);
      vf s[kStored][kTileVectors];
      each<K>([&](auto k) { std::get<k>(codecs).decode(codes[k] + at, C::kScaled ? *scales[k] : 1.f, s[k]); });
      vf next[kTileVectors];
      for (int i = 0; i < kTileVectors; ++i) {
        const int e = at + i * kLanes;
        vf state[kStored];
        for (int k = 0; k < K; ++k) state[k] = s[k][i];
        next[i] = R::template step<vf>(load(p + e), load(g + e) * grad_scale, state, args);
        for (int k = 0; k < K; ++k) {
          if constexpr (C::kScaled) largest[k] = max_abs(largest[k], state[k]);
          store(state[k], stage.values[k] + e);
        }
      }
      store_tile(next, p + at);
      if constexpr (!C::kScaled) encode_tile(stage, t);
      if constexpr (kLast) encode_tile(last, t);
    }
    if constexpr (C::kScaled) {
      each<K>([&](auto k) {
        float absmax = reduce_max(largest[k]);
        if (HWY_UNLIKELY(!(absmax <= kLargestState))) absmax = saturate(stage.values[k], tiles * kTile);
        const BlockScale of = block_scale<C, ((R::kSigned >> k) & 1) != 0>(absmax);
        *scales[k] = of.scale;
        stage.inverse[k] = of.inverse;
      });
    }
  }

  HWY_INLINE void encode_tile(const Stage& stage, int t) const {
    each<K>([&](auto k) {
      const int at = t * kTile;
      std::get<k>(codecs).encode(stage.values[k] + at, C::kScaled ? stage.inverse[k] : 0.f, rounding[k],
                                 stage.index + static_cast<u32>(at), stage.codes[k] + at);
    });
  }

  HWY_INLINE void encode(const Stage& stage, int tiles) const {
    for (int t = 0; t < tiles; ++t) encode_tile(stage, t);
  }

  // The tile kAhead bytes on; may point past the end. A block's arithmetic takes longer than the processor looks ahead,
  // and the page after this one is cold. (Zen 4, dynamic8 AdamW from memory: 5 % with AVX2, 2 % with AVX-512; more
  // arrays or twice the distance gain less or lose.)
  template <class T>
  HWY_INLINE static void prefetch(const T* tile) {
    constexpr int kAhead = 2048, kLine = 64;
    for (int b = 0; b < kTile * static_cast<int>(sizeof(T)); b += kLine)
      __builtin_prefetch(reinterpret_cast<const char*>(tile) + kAhead + b);
  }

  // A state that overflowed (a weight of 1e20 under an L2 penalty, say) would make the scale infinite and the whole
  // block NaN; it becomes the largest float instead. Returns the new absmax.
  static HWY_NOINLINE float saturate(float* values, int n) {
    float absmax = 0;
    for (int i = 0; i < n; ++i) {
      if (values[i] > kLargestState) values[i] = kLargestState;
      if (values[i] < -kLargestState) values[i] = -kLargestState;
      if (absmax < __builtin_fabsf(values[i])) absmax = __builtin_fabsf(values[i]);
    }
    return absmax;
  }

  // A short block: the same code over a padded copy. Padding has gradient, parameter and state zero.
  void tail(P* p, const G* g, Code* const (&codes)[kStored], float* const (&scales)[kStored], int n, u32 index) const {
    alignas(64) P padded_p[kBlock];
    alignas(64) G padded_g[kBlock];
    alignas(64) Code padded[kStored][kBlock];
    const int tiles = (n + kTile - 1) / kTile;
    Code* padded_codes[kStored] = {};
    for (int i = n; i < tiles * kTile; ++i) padded_p[i] = P{}, padded_g[i] = G{};
    __builtin_memcpy(padded_p, p, static_cast<size_t>(n) * sizeof(P));
    __builtin_memcpy(padded_g, g, static_cast<size_t>(n) * sizeof(G));
    each<K>([&](auto k) {
      padded_codes[k] = padded[k];
      const Code zero = StateCodec<R, C, k>::zero_code();
      for (int i = n; i < tiles * kTile; ++i) padded[k][i] = zero;
      __builtin_memcpy(padded[k], codes[k], static_cast<size_t>(n) * sizeof(Code));
    });
    Stage stage;
    block<false>(padded_p, padded_g, padded_codes, scales, tiles, index, stage, stage);
    if constexpr (C::kScaled) encode(stage, tiles);
    __builtin_memcpy(p, padded_p, static_cast<size_t>(n) * sizeof(P));
    each<K>([&](auto k) { __builtin_memcpy(codes[k], padded[k], static_cast<size_t>(n) * sizeof(Code)); });
  }

  static void run(const StepRun& run) {
    const StepDriver driver(run);
    P* p = static_cast<P*>(run.param);
    const G* g = static_cast<const G*>(run.grad);
    Code* codes[kStored] = {};
    float* scales[kStored] = {};
    for (int k = 0; k < K; ++k) codes[k] = static_cast<Code*>(run.codes[k]), scales[k] = run.scales[k];
    // Blocks whose codes have a scale are encoded one block late.
    Stage stages[2];
    Stage *stage = stages, *last = stages + 1;
    int64_t done = 0;
    const auto full_block = [&](auto have_last) {
      driver.template block<have_last>(p + done, g + done, codes, scales, kBlock / kTile,
                                       run.index + static_cast<u32>(done), *stage, *last);
      for (int k = 0; k < K; ++k) codes[k] += kBlock, scales[k] += C::kScaled;
      done += kBlock;
      std::swap(stage, last);
    };
    if (run.n >= kBlock) {
      full_block(std::false_type());
      while (done + kBlock <= run.n) full_block(std::bool_constant<C::kScaled>());
      if constexpr (C::kScaled) driver.encode(*last, kBlock / kTile);
    }
    if (done < run.n)
      driver.tail(p + done, g + done, codes, scales, static_cast<int>(run.n - done),
                  run.index + static_cast<u32>(done));
  }
};
