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

  // One block of `tiles` * 64 elements.
  HWY_INLINE void block(P* p, const G* g, Code* const (&codes)[kStored], float* const (&scales)[kStored], int tiles,
                        u32 index) const {
    alignas(64) float staged[kStored][kBlock];
    vf largest[kStored];
    for (int k = 0; k < K; ++k) largest[k] = vf(0.f);
    for (int t = 0; t < tiles; ++t) {
      const int at = t * kTile;
#if HWY_TARGET == HWY_AVX2
      prefetch(p + at);
      prefetch(g + at);
#endif
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
          store(state[k], staged[k] + e);
        }
      }
      store_tile(next, p + at);
      if constexpr (!C::kScaled) each<K>([&](auto k) { encode<k>(staged[k] + at, 0.f, index + at, codes[k] + at); });
    }
    if constexpr (C::kScaled) {
      each<K>([&](auto k) {
        float absmax = reduce_max(largest[k]);
        if (HWY_UNLIKELY(!(absmax <= kLargestState))) absmax = saturate(staged[k], tiles * kTile);
        *scales[k] = absmax / C::kTop;
        const float inverse = block_inverse(absmax, C::kTop);
        for (int t = 0; t < tiles; ++t)
          encode<k>(staged[k] + t * kTile, inverse, index + t * kTile, codes[k] + t * kTile);
      });
    }
  }

  // The tile kAhead bytes on: the encoding of a block pauses the loads of the next one. May point past the end. For
  // AVX2, whose loops are too long to look ahead by themselves (7 % of dynamic8 AdamW, Zen 4); AVX-512 loses 4 % by it.
  template <class T>
  HWY_INLINE static void prefetch(const T* tile) {
    constexpr int kAhead = 4096, kLine = 64;
    for (int b = 0; b < kTile * static_cast<int>(sizeof(T)); b += kLine)
      __builtin_prefetch(reinterpret_cast<const char*>(tile) + kAhead + b);
  }

  template <int k>
  HWY_INLINE void encode(const float* values, float inverse, u32 index, Code* codes) const {
    std::get<k>(codecs).encode(values, inverse, rounding[k], index, codes);
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
    block(padded_p, padded_g, padded_codes, scales, tiles, index);
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
    int64_t done = 0;
    for (; done + kBlock <= run.n; done += kBlock) {
      driver.block(p + done, g + done, codes, scales, kBlock / kTile, run.index + static_cast<u32>(done));
      for (int k = 0; k < K; ++k) codes[k] += kBlock, scales[k] += C::kScaled;
    }
    if (done < run.n)
      driver.tail(p + done, g + done, codes, scales, static_cast<int>(run.n - done),
                  run.index + static_cast<u32>(done));
  }
};
