// The side of the libraries that use the kernels: the functions that choose them, without the kernels.
#include "backend/cpu/shared/kernels.h"

namespace lowtide::cpu {

AuxKernels pick_aux(int64_t target) { return lt_cpu_kernels()->aux(target); }
NormKernel pick_norms(int rule, int codec, int64_t target) { return lt_cpu_kernels()->norms(rule, codec, target); }
SignKernels pick_signs(int64_t target) { return lt_cpu_kernels()->signs(target); }
SignStepKernels pick_sign_step(int64_t target) { return lt_cpu_kernels()->sign_step(target); }
StepKernels pick_steps(int64_t target) { return lt_cpu_kernels()->steps(target); }
SumsKernels pick_sums(int64_t target) { return lt_cpu_kernels()->sums(target); }

}  // namespace lowtide::cpu
