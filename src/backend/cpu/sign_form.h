// Forms of packed signs that exist only in host memory.
#pragma once

#include "backend/signs.h"

namespace lowtide::cpu {

struct SignForm {
  bool big = false;       // sign i is bit 7 - i % 8 of its byte; items begin at a byte, and have no presence
  bool sign_bit = false;  // for packing: 1 means a clear sign bit, whatever the value, including -0 and NaNs
};

// One item, with the best kernels that run here; a vote in the order "big" has no presence. Throw kInvalidArgument for
// an inconsistent item.
void pack_signs(const SignItem& item, SignForm form, int threads);
void unpack_signs(const SignItem& item, SignForm form, int threads);
void vote_signs(const VoteItem& item, SignForm form, int threads);

}  // namespace lowtide::cpu
