// How one state of a parameter is stored: codes, and scales that blocks of them share.
#pragma once

#include <cstdint>

#include "backend/limits.h"

namespace lowtide {

struct StateFormat {
  int code_bits = 32;  // 32, 16, 8, or 4: two to a byte, the first in the low half
  int scales = 0;      // float32 per block of kBlockElements; the last block of a row may be short, and has as many
  uint8_t zero = 0;    // the byte that the codes of an untouched state consist of

  // For elements that begin and end at whole bytes: rows are of an even length where a byte holds two.
  int64_t code_bytes(int64_t elements) const { return elements * code_bits / 8; }
  int64_t scale_bytes(int64_t blocks) const { return blocks * scales * int64_t{sizeof(float)}; }
  int scale_block() const { return scales ? kBlockElements / scales : 0; }  // elements that share one
  bool operator==(const StateFormat&) const = default;
};

}  // namespace lowtide
