// Operations on signs with several threads: cut into pieces, which the kernels of one instruction set do. Items are
// checked.
#pragma once

#include "backend/cpu/sign_kernel.h"

namespace lowtide::cpu {

void pack_signs(const SignKernels& kernels, std::span<const SignItem> items, int threads);
void unpack_signs(const SignKernels& kernels, std::span<const SignItem> items, int threads);
void vote_signs(const SignKernels& kernels, const VoteItem& item, int threads);
void count_signs(const SignKernels& kernels, const CountItem& item, int threads);

}  // namespace lowtide::cpu
