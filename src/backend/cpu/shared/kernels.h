// The CPU kernels as a library of their own: what passes its border. The libraries of a wheel share it
// (LOWTIDE_SHARED_KERNELS), where each would have megabytes of the same machine code.
#pragma once

#include "backend/cpu/gradient_sums.h"
#include "backend/cpu/kernel_tables.h"
#include "backend/cpu/sign_kernels.h"

namespace lowtide::cpu {

// The functions of those headers that choose kernels.
struct KernelLibrary {
  decltype(&pick_aux) aux;
  decltype(&pick_norms) norms;
  decltype(&pick_signs) signs;
  decltype(&pick_sign_step) sign_step;
  decltype(&pick_steps) steps;
  decltype(&pick_sums) sums;
};

}  // namespace lowtide::cpu

// The one symbol that the library shows. Lives as long as the library.
extern "C" __attribute__((visibility("default"))) const lowtide::cpu::KernelLibrary* lt_cpu_kernels();
