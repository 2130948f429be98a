// The CPU driver of norms: decode -> terms -> sums of squares, over blocks of 256 elements that pass through the cache
// as floats. Nothing is stored but the sums. With one-lane vectors it is the scalar reference.

static_assert(kNormLanes % kLanes == 0 && kBlock % kNormLanes == 0);

// A block's n elements as floats, zeros behind them: where they are, or in `padded`.
template <class T>
HWY_INLINE const float* widened(const T* from, int n, float* padded) {
  alignas(64) T last[kBlock];
  if (n < kBlock) {
    for (int i = n; i < kBlock; ++i) last[i] = T{};
    __builtin_memcpy(last, from, static_cast<size_t>(n) * sizeof(T));
    from = last;
  } else if constexpr (std::is_same_v<T, float>) {
    return from;
  }
  for (int i = 0; i < kBlock; i += kLanes) store(load(from + i), padded + i);
  return padded;
}
HWY_INLINE const float* widened(const void* from, int dtype, int64_t at, int n, float* padded) {
  if (dtype == 0) return widened(static_cast<const float*>(from) + at, n, padded);
  if (dtype == 1) return widened(static_cast<const bf16*>(from) + at, n, padded);
  return widened(static_cast<const f16*>(from) + at, n, padded);
}

// The sum of the squares of a block's values, and its unit.
HWY_INLINE void sum_squares(const float* values, vf largest, float* sum, float* unit) {
  const u32 exponent = norm_exponent(bits(reduce_max(largest)));
  const vf inverse(norm_inverse(exponent));
  constexpr int kSums = kNormLanes / kLanes;
  vf sums[kSums];
  for (vf& s : sums) s = vf(0.f);
  for (int i = 0; i < kBlock; i += kNormLanes)
    for (int j = 0; j < kSums; ++j) {
      const vf x = load(values + i + j * kLanes) * inverse;
      sums[j] = sums[j] + x * x;
    }
  alignas(64) float lane[kNormLanes];
  for (int j = 0; j < kSums; ++j) store(sums[j], lane + j * kLanes);
  *sum = sum_lanes(lane);
  *unit = norm_unit(exponent);
}

template <class R, class C>
struct NormDriver {
  static constexpr int K = R::kNormsReadState ? R::kStates : 0;
  static constexpr int kStored = K ? K : 1;  // no arrays of size 0
  using Code = typename C::Code;

  StateCodecs<R, C> codecs{};
  typename R::Args args;
  vf grad_scale;

  explicit NormDriver(const NormRun& run) : grad_scale(run.grad_scale) {
    __builtin_memcpy(&args, run.args, sizeof args);
  }

  HWY_INLINE void block(const float* p, const float* g, const Code* const (&codes)[kStored],
                        const float* const (&scales)[kStored], BlockNorms* out) const {
    alignas(64) float values[2][kBlock];
    vf largest[2] = {vf(0.f), vf(0.f)};
    for (int at = 0; at < kBlock; at += kTile) {
      vf s[kStored][kTileVectors];
      each<K>([&](auto k) { std::get<k>(codecs).decode(codes[k] + at, C::kScaled ? *scales[k] : 1.f, s[k]); });
      for (int i = 0; i < kTileVectors; ++i) {
        const int e = at + i * kLanes;
        vf state[kStored], x[2];
        for (int k = 0; k < K; ++k) state[k] = s[k][i];
        R::template terms<vf>(load(p + e), load(g + e) * grad_scale, state, args, x);
        for (int t = 0; t < 2; ++t) {
          largest[t] = max_abs(largest[t], x[t]);
          store(x[t], values[t] + e);
        }
      }
    }
    for (int t = 0; t < 2; ++t) sum_squares(values[t], largest[t], &out->sum[t], &out->unit[t]);
  }

  // The n elements from `at` of a run.
  HWY_INLINE void block_at(const NormRun& run, int64_t at, int n, const Code* const (&codes)[kStored]) const {
    alignas(64) float p[kBlock], g[kBlock];
    const float* scales[kStored] = {};
    for (int k = 0; C::kScaled && k < K; ++k) scales[k] = run.scales[k] + at / kBlock;
    block(widened(run.param, run.param_dtype, at, n, p), widened(run.grad, run.grad_dtype, at, n, g), codes, scales,
          run.out + at / kBlock);
  }

  // A short block: codes of zeros behind it.
  HWY_NOINLINE void tail(const NormRun& run, int64_t at, int n, const Code* const (&codes)[kStored]) const {
    alignas(64) Code padded[kStored][kBlock];
    const Code* from[kStored] = {};
    each<K>([&](auto k) {
      for (Code& code : padded[k]) code = StateCodec<R, C, k>::zero_code();
      __builtin_memcpy(padded[k], codes[k], static_cast<size_t>(n) * sizeof(Code));
      from[k] = padded[k];
    });
    block_at(run, at, n, from);
  }

  static void run(const NormRun& run) {
    const NormDriver driver(run);
    const Code* codes[kStored] = {};
    for (int k = 0; k < K; ++k) codes[k] = static_cast<const Code*>(run.codes[k]);
    int64_t at = 0;
    for (; at + kBlock <= run.n; at += kBlock) {
      driver.block_at(run, at, kBlock, codes);
      for (int k = 0; k < K; ++k) codes[k] += kBlock;
    }
    if (at < run.n) driver.tail(run, at, static_cast<int>(run.n - at), codes);
  }
};
