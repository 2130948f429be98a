// Signs on the CPU in plain code, on 64-bit words and one thread: the reference of the kernels (sign_kernels.inc), and
// what targets without vectors run. Items are checked.
#pragma once

#include "backend/cpu/sign_kernel.h"

namespace lowtide::cpu {

void pack_signs(const SignItem& item);
void unpack_signs(const SignItem& item);
void vote_signs(const VoteRun& run);
void count_signs(const CountRun& run);

}  // namespace lowtide::cpu
