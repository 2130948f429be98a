// Two things would change bits if we let them: fused multiply-adds, and a caller's flush-to-zero mode. Each claim
// stands beside the same arithmetic without the protection, which must give other bits.
#include "backend/cpu/cpu_backend.h"
#include "lowtide/optimizer.h"
#include "support/step_case.h"
#include "support/test.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace lowtide::testing {

void adamw_plain(float* p, const float* g, float* m, float* v, int64_t n, const void* args);
void adamw_contracted(float* p, const float* g, float* m, float* v, int64_t n, const void* args);

namespace {

using Control = void (*)(float*, const float*, float*, float*, int64_t, const void*);

void run_control(Control control, StepCase& c) {
  control(reinterpret_cast<float*>(c.param.data()), reinterpret_cast<const float*>(c.grad.data()),
          reinterpret_cast<float*>(c.codes[0].data()), reinterpret_cast<float*>(c.codes[1].data()), c.layout.numel,
          c.args);
}

StepCase adamw_case(Rng& rng) {
  return StepCase(find_rule("adamw"), find_codec("fp32"), DType::kF32, DType::kF32, 1, 50'000, rng);
}

TEST(FloatingPoint, ContractionWouldChangeBits) {
#if defined(__x86_64__)
  if (!__builtin_cpu_supports("fma")) GTEST_SKIP() << "this CPU has no fused multiply-add";
  auto rng = seeded("contraction", 30);
  const StepCase start = adamw_case(rng);
  StepCase plain = start, contracted = start;
  run_control(adamw_plain, plain);
  run_control(adamw_contracted, contracted);
  for (const std::string& target : cpu_targets()) {
    StepCase got = start;
    const StepItem item = got.item();
    cpu::make_backend(target)->step({&item, 1}, 1, false, nullptr);
    EXPECT_EQ(differing_bytes(got, plain), 0) << target << ": the same source outside of the library";
    EXPECT_GT(differing_bytes(got, contracted), 1000) << target << ": control";
  }
  figure("of {} bytes, contraction changes {}", start.bytes(), differing_bytes(plain, contracted));
#else
  GTEST_SKIP() << "the control needs x86-64";
#endif
}

#if defined(__x86_64__)
class FlushToZero {
 public:
  FlushToZero() : saved_(_mm_getcsr()) { _mm_setcsr(saved_ | 0x8040); }  // FTZ and DAZ
  ~FlushToZero() { _mm_setcsr(saved_); }

 private:
  unsigned saved_;
};

TEST(FloatingPoint, AFlushToZeroCallerChangesNoBit) {
  auto rng = seeded("flush to zero", 31);
  StepCase start = adamw_case(rng);
  // Moments and parameters among the denormals.
  auto* m = reinterpret_cast<float*>(start.codes[0].data());
  auto* v = reinterpret_cast<float*>(start.codes[1].data());
  auto* p = reinterpret_cast<float*>(start.param.data());
  auto* g = reinterpret_cast<float*>(start.grad.data());
  for (int64_t i = 0; i < start.layout.numel; ++i) {
    m[i] = static_cast<float>(rng.over_binades(-148, -126)),
    v[i] = std::fabs(static_cast<float>(rng.over_binades(-148, -126)));
    g[i] = static_cast<float>(rng.over_binades(-148, -126));
    if (i % 2) p[i] = static_cast<float>(rng.over_binades(-148, -120));
  }
  StepCase plain = start;
  run_control(adamw_plain, plain);
  StepCase flushed = start;
  {
    const FlushToZero mode;
    run_control(adamw_plain, flushed);
  }
  const int64_t control = differing_bytes(plain, flushed);
  EXPECT_GT(control, 1000) << "control: the same arithmetic in that mode";
  for (const std::string& target : cpu_targets())
    for (const int threads : {1, 2}) {
      StepCase got = start;
      const StepItem item = got.item();
      const auto backend = cpu::make_backend(target);
      {
        const FlushToZero mode;
        const unsigned before = _mm_getcsr() & 0xffc0;
        backend->step({&item, 1}, threads, false, nullptr);
        EXPECT_EQ(_mm_getcsr() & 0xffc0, before) << "the caller's mode must be as it was";
      }
      EXPECT_EQ(differing_bytes(got, plain), 0) << target << " threads " << threads;
    }
  figure("flush to zero would change {} of {} bytes; 0 changed", control, start.bytes());
}
#endif

}  // namespace
}  // namespace lowtide::testing
