// Signs on the CPU: the dialect on 64-bit words, one thread. Items are checked.
#pragma once

#include "backend/signs.h"

namespace lowtide::cpu {

void pack_signs(const SignItem& item);
void unpack_signs(const SignItem& item);
void vote_signs(const VoteItem& item);
void count_signs(const CountItem& item);

}  // namespace lowtide::cpu
