// Packed signs in the bit order "big", the mirror image of "little" within each byte. Pure.
#pragma once

#include <cstddef>
#include <cstdint>

namespace lowtide::sign {

// Mirrors the bits of each byte. `to` may be `from`.
inline void reverse_bits(const std::byte* from, std::byte* to, int64_t bytes) {
  for (int64_t i = 0; i < bytes; ++i) {
    auto b = std::to_integer<unsigned char>(from[i]);
    b = static_cast<unsigned char>((b & 0xf0) >> 4 | (b & 0x0f) << 4);
    b = static_cast<unsigned char>((b & 0xcc) >> 2 | (b & 0x33) << 2);
    b = static_cast<unsigned char>((b & 0xaa) >> 1 | (b & 0x55) << 1);
    to[i] = std::byte{b};
  }
}

// Clears the bits behind the last of `count` signs in its byte.
inline void clear_tail(std::byte* bits, int64_t count) {
  if (const int64_t used = count % 8) bits[count / 8] &= std::byte{static_cast<unsigned char>(0xff << (8 - used))};
}

}  // namespace lowtide::sign
