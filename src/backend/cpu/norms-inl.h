// The CPU driver of norms: decode -> terms -> sums of squares, or exact sums, over blocks of 256 floats. Only the sums
// are stored.
// With one-lane vectors it is the scalar reference.

static_assert(kNormLanes % kLanes == 0 && kBlock % kNormLanes == 0);

// Returns the sum of the squares of a block's values, and its unit.
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

// The states that a rule's terms read, as bits.
template <class R>
constexpr u32 states_of_terms() {
  if constexpr (kHasSums<R>)
    return R::kSumsRead;
  else
    return R::kNormsReadState ? (1u << R::kStates) - 1 : 0;
}

template <class R, class C>
struct NormDriver {
  static constexpr u32 kRead = states_of_terms<R>();
  static constexpr int K = kRead ? R::kStates : 0;
  static constexpr int kStored = K ? K : 1;  // no arrays of size 0
  template <int k>
  static constexpr bool kSigned = ((R::kSigned >> k) & 1) != 0;
  template <int k>
  using Code = CodeOf<C, kSigned<k>>;

  StateCodecs<R, C> codecs{};
  typename R::Args args;
  vf grad_scale;
  RunSum first, second;
  TermSums* sums;

  explicit NormDriver(const NormRun& run) : grad_scale(run.grad_scale), sums(run.sums) {
    __builtin_memcpy(&args, run.args, sizeof args);
  }

  // n: a block, or for exact sums, to which zeros add nothing, its first tiles.
  HWY_INLINE void block(const float* p, const float* g, const u8* const (&codes)[kStored],
                        const float* const (&scales)[kStored], int n, BlockNorms* out) {
    alignas(64) float values[2][kBlock];
    vf largest[2] = {vf(0.f), vf(0.f)};
    vu most[2] = {vu(0u), vu(0u)}, least[2] = {vu(0xffffffffu), vu(0xffffffffu)};
    for (int at = 0; at < n; at += kTile) {
      vf s[kStored][kTileVectors];
      each<K>([&](auto k) {
        if constexpr ((kRead >> k & 1) == 0) return;
        const auto* const here = reinterpret_cast<const Code<k>*>(codes[k]) + code_count<Code<k>>(at);
        std::get<k>(codecs).decode(here, C::kScaled ? scales[k][at * kScales<C, kSigned<k>> / kBlock] : 1.f, s[k]);
      });
      for (int i = 0; i < kTileVectors; ++i) {
        const int e = at + i * kLanes;
        vf state[kStored], x[2];
        for (int k = 0; k < K; ++k)
          if (kRead >> k & 1) state[k] = s[k][i];
        R::template terms<vf>(load(p + e), load(g + e) * grad_scale, state, args, x);
        for (int t = 0; t < 2; ++t) {
          if constexpr (kHasSums<R>)
            see(x[t], most[t], least[t]);
          else
            largest[t] = max_abs(largest[t], x[t]);
          store(x[t], values[t] + e);
        }
      }
    }
    if constexpr (kHasSums<R>) {
      first.add_block(values[0], n, most[0], least[0], sums->below, sums->above);
      second.add_block(values[1], n, most[1], least[1], sums->second, sums->second);
    } else {
      for (int t = 0; t < 2; ++t) sum_squares(values[t], largest[t], &out->sum[t], &out->unit[t]);
    }
  }

  // Runs the same code for a short block, on copies padded with zeros.
  HWY_NOINLINE void tail(const float* p, const float* g, const u8* const (&codes)[kStored],
                         const float* const (&scales)[kStored], int n, BlockNorms* out) {
    const int whole = kHasSums<R> && n <= kBlock - kTile ? (n + kTile - 1) / kTile * kTile : kBlock;
    alignas(64) float padded_p[kBlock], padded_g[kBlock];
    for (float* const padded : {padded_p, padded_g})
      __builtin_memset(padded, 0, static_cast<size_t>(whole) * sizeof(float));
    alignas(64) u8 padded[kStored][kBlock * sizeof(float)];
    const u8* from[kStored] = {};
    __builtin_memcpy(padded_p, p, static_cast<size_t>(n) * sizeof(float));
    __builtin_memcpy(padded_g, g, static_cast<size_t>(n) * sizeof(float));
    each<K>([&](auto k) {
      const Code<k> zero = StateCodec<R, C, k>::zero_code();
      for (size_t at = 0; at < static_cast<size_t>(code_count<Code<k>>(whole)) * sizeof zero; at += sizeof zero)
        __builtin_memcpy(padded[k] + at, &zero, sizeof zero);
      __builtin_memcpy(padded[k], codes[k], static_cast<size_t>(code_count<Code<k>>(n)) * sizeof zero);
      from[k] = padded[k];
    });
    block(padded_p, padded_g, from, scales, whole, out);
  }

  static void run(const NormRun& run) {
    NormDriver driver(run);
    const u8* codes[kStored] = {};
    const float* scales[kStored] = {};
    for (int k = 0; k < K; ++k) codes[k] = static_cast<const u8*>(run.codes[k]), scales[k] = run.scales[k];
    BlockNorms* out = run.out;
    int64_t at = 0;
    for (; at + kBlock <= run.n; at += kBlock) {
      driver.block(run.param + at, run.grad + at, codes, scales, kBlock, out);
      if constexpr (!kHasSums<R>) ++out;
      each<K>([&](auto k) {
        codes[k] += kBlock * kCodeBits<Code<k>> / 8;
        scales[k] += kScales<C, kSigned<k>>;
      });
    }
    if (at < run.n) driver.tail(run.param + at, run.grad + at, codes, scales, static_cast<int>(run.n - at), out);
    if constexpr (kHasSums<R>) {
      driver.first.finish(run.sums->below, run.sums->above);
      driver.second.finish(run.sums->second, run.sums->second);
    }
  }
};
