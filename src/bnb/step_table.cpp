// The kernels of steps that liblowtide_bnb is linked with (cmake/bnb.cmake): those of bitsandbytes' rules.
#include "backend/cpu/kernel_tables.h"
#include "backend/catalog.h"

namespace lowtide::cpu {

StepKernels pick_steps(int64_t target) {
  StepKernels some{};
  const auto add = [&](const char* rule, StepKernel (*pick)(int codec, int pair, int64_t target)) {
    for (int codec = 0; codec < kCodecs; ++codec)
      for (int pair = 0; pair < kPairs; ++pair) some.of[find_rule(rule)][codec][pair] = pick(codec, pair, target);
  };
  add("adamw", pick_step_adamw);
  add("sgd", pick_step_sgd);
  add("rmsprop", pick_step_rmsprop);
  add("lion", pick_step_lion);
  add("adagrad", pick_step_adagrad);
  add("ademamix", pick_step_ademamix);
  return some;
}

}  // namespace lowtide::cpu
