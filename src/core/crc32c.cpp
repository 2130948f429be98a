#include "core/crc32c.h"

#include <array>
#include <cstring>

#if defined(__x86_64__)
#include <nmmintrin.h>
#endif

namespace lowtide {
namespace {

constexpr std::array<uint32_t, 256> make_table() {
  constexpr uint32_t kPolynomial = 0x82f63b78u;  // reflected
  std::array<uint32_t, 256> table{};
  for (uint32_t i = 0; i < 256; ++i) {
    uint32_t x = i;
    for (int bit = 0; bit < 8; ++bit) x = x & 1 ? x >> 1 ^ kPolynomial : x >> 1;
    table[i] = x;
  }
  return table;
}
constexpr std::array<uint32_t, 256> kTable = make_table();

#if defined(__x86_64__)
[[gnu::target("sse4.2")]] uint32_t by_instruction(const void* data, size_t bytes, uint32_t before) {
  const auto* p = static_cast<const unsigned char*>(data);
  uint64_t crc = ~before;
  for (; bytes >= 8; bytes -= 8, p += 8) {
    uint64_t word;
    std::memcpy(&word, p, sizeof word);
    crc = _mm_crc32_u64(crc, word);
  }
  auto rest = static_cast<uint32_t>(crc);
  for (; bytes; --bytes, ++p) rest = _mm_crc32_u8(rest, *p);
  return ~rest;
}
#endif

using Function = uint32_t (*)(const void*, size_t, uint32_t);
Function best() {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("sse4.2")) return by_instruction;
#endif
  return crc32c_by_table;
}

}  // namespace

uint32_t crc32c_by_table(const void* data, size_t bytes, uint32_t before) {
  const auto* p = static_cast<const unsigned char*>(data);
  uint32_t crc = ~before;
  for (; bytes; --bytes, ++p) crc = crc >> 8 ^ kTable[(crc ^ *p) & 0xff];
  return ~crc;
}

uint32_t crc32c(const void* data, size_t bytes, uint32_t before) {
  static const Function function = best();
  return function(data, bytes, before);
}

}  // namespace lowtide
