// The side of the library that has the kernels.
#include "backend/cpu/shared/kernels.h"

extern "C" const lowtide::cpu::KernelLibrary* lt_cpu_kernels() {
  using namespace lowtide::cpu;
  static constexpr KernelLibrary kLibrary{pick_aux, pick_norms, pick_signs, pick_sign_step, pick_steps, pick_sums};
  return &kLibrary;
}
