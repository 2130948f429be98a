// SHA-256 (FIPS 180-4) of a short array, to check constants against a published digest.
#pragma once

#include "support/test.h"

namespace lowtide::testing {

inline std::string sha256(const void* data, size_t bytes) {
  // The round constants are the fractional parts of cube roots of primes; the first state is made of square roots.
  const auto root_bits = [](int prime, int root) {  // floor(2^32 * fraction), by bisection in 128-bit integers
    __extension__ typedef unsigned __int128 Wide;
    uint64_t low = 0, high = uint64_t{32} << 32;
    while (high - low > 1) {
      const uint64_t middle = (low + high) / 2;
      const Wide square = static_cast<Wide>(middle) * middle;
      const bool above = root == 2 ? square > (static_cast<Wide>(prime) << 64)
                                   : square / 256 * middle > (static_cast<Wide>(prime) << 88);
      (above ? high : low) = middle;
    }
    return static_cast<uint32_t>(low);
  };
  uint32_t k[64], h[8];
  for (int i = 0, candidate = 2; i < 64; ++candidate) {
    bool prime = true;
    for (int d = 2; d * d <= candidate; ++d) prime = prime && candidate % d != 0;
    if (!prime) continue;
    if (i < 8) h[i] = root_bits(candidate, 2);
    k[i++] = root_bits(candidate, 3);
  }
  std::vector<uint8_t> message(static_cast<const uint8_t*>(data), static_cast<const uint8_t*>(data) + bytes);
  message.push_back(0x80);
  while (message.size() % 64 != 56) message.push_back(0);
  for (int shift = 56; shift >= 0; shift -= 8) message.push_back(static_cast<uint8_t>(uint64_t{bytes} * 8 >> shift));
  for (size_t at = 0; at < message.size(); at += 64) {
    uint32_t w[64], s[8];
    for (size_t i = 0; i < 16; ++i)
      w[i] = uint32_t{message[at + 4 * i]} << 24 | uint32_t{message[at + 4 * i + 1]} << 16 |
             uint32_t{message[at + 4 * i + 2]} << 8 | message[at + 4 * i + 3];
    for (int i = 16; i < 64; ++i)
      w[i] = w[i - 16] + (std::rotr(w[i - 15], 7) ^ std::rotr(w[i - 15], 18) ^ (w[i - 15] >> 3)) + w[i - 7] +
             (std::rotr(w[i - 2], 17) ^ std::rotr(w[i - 2], 19) ^ (w[i - 2] >> 10));
    std::copy(h, h + 8, s);
    for (int i = 0; i < 64; ++i) {
      const uint32_t t1 = s[7] + (std::rotr(s[4], 6) ^ std::rotr(s[4], 11) ^ std::rotr(s[4], 25)) +
                          ((s[4] & s[5]) ^ (~s[4] & s[6])) + k[i] + w[i];
      const uint32_t t2 = (std::rotr(s[0], 2) ^ std::rotr(s[0], 13) ^ std::rotr(s[0], 22)) +
                          ((s[0] & s[1]) ^ (s[0] & s[2]) ^ (s[1] & s[2]));
      for (int j = 7; j > 0; --j) s[j] = s[j - 1];
      s[4] += t1;
      s[0] = t1 + t2;
    }
    for (int i = 0; i < 8; ++i) h[i] += s[i];
  }
  std::string hex;
  for (const uint32_t word : h) {
    char text[9];
    std::snprintf(text, sizeof text, "%08x", word);
    hex += text;
  }
  return hex;
}

}  // namespace lowtide::testing
