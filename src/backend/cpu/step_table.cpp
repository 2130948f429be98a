// The step kernels of the rules in this build.
#include "backend/cpu/kernel_tables.h"

namespace lowtide::cpu {

StepKernels pick_steps(int64_t target) {
  StepKernels all{};
  for (int codec = 0; codec < kCodecs; ++codec)
    for (int pair = 0; pair < kPairs; ++pair) {
#define LT_RULE(number, name, Rule) all.of[number][codec][pair] = pick_step_##name(codec, pair, target);
#include "backend/built_rules.def"
#undef LT_RULE
    }
  return all;
}

}  // namespace lowtide::cpu
