// Forms of packed signs that only host memory has.
#pragma once

#include "backend/signs.h"

namespace lowtide::cpu {

struct SignForm {
  bool big = false;       // sign i is bit 7 - i % 8 of its byte; items begin with a byte, and have no presence
  bool sign_bit = false;  // for packing: 1 is a clear sign bit, whatever the value: -0 and NaNs by theirs
};

// One item, by the best kernels that run here; a vote has no presence in the order "big". Throw kInvalidArgument for an
// item that makes no sense.
void pack_signs(const SignItem& item, SignForm form, int threads);
void unpack_signs(const SignItem& item, SignForm form, int threads);
void vote_signs(const VoteItem& item, SignForm form, int threads);

}  // namespace lowtide::cpu
