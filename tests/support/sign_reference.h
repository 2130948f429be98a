// Signs by their definition, one at a time, without the portable kernels: the reference for all backends. Without
// gtest, which MPI's test does not use.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "backend/signs.h"
#include "support/random.h"

namespace lowtide::testing {

using Bits = std::vector<unsigned char>;

inline size_t sign_bytes(int64_t count) { return static_cast<size_t>(lowtide::sign_bytes(count)); }
inline const std::byte* bytes(const Bits& bits) {
  return bits.empty() ? nullptr : reinterpret_cast<const std::byte*>(bits.data());
}
inline std::byte* bytes(Bits& bits) { return bits.empty() ? nullptr : reinterpret_cast<std::byte*>(bits.data()); }
inline Bits random_bytes(size_t size, Rng& rng) {
  Bits out(size);
  for (auto& byte : out) byte = static_cast<unsigned char>(rng.next());
  return out;
}
// Bits after the last sign of the last byte are random, too.
inline Bits random_bits(int64_t count, Rng& rng) { return random_bytes(sign_bytes(count), rng); }
inline int64_t bits_apart(const Bits& a, const Bits& b) {
  int64_t apart = a.size() == b.size() ? 0 : 1;
  for (size_t i = 0; i < std::min(a.size(), b.size()); ++i) apart += std::popcount(static_cast<unsigned>(a[i] ^ b[i]));
  return apart;
}
inline bool sign_of(const Bits& bits, int64_t i) { return bits[static_cast<size_t>(i / 8)] >> (i % 8) & 1; }

// Returns an element's value in double; a NaN stays a NaN.
inline double value_of(DType dtype, const unsigned char* element) {
  if (dtype == DType::kF32) {
    float x;
    std::memcpy(&x, element, sizeof x);
    return x;
  }
  uint16_t h;
  std::memcpy(&h, element, sizeof h);
  const int exponent_bits = dtype == DType::kBF16 ? 8 : 5, mantissa_bits = 15 - exponent_bits;
  const int exponent = h >> mantissa_bits & ((1 << exponent_bits) - 1), mantissa = h & ((1 << mantissa_bits) - 1);
  const int bias = (1 << (exponent_bits - 1)) - 1;
  double x;
  if (exponent == (1 << exponent_bits) - 1)
    x = mantissa ? NAN : INFINITY;
  else if (exponent)
    x = std::ldexp(1 + std::ldexp(mantissa, -mantissa_bits), exponent - bias);
  else
    x = std::ldexp(mantissa, 1 - bias - mantissa_bits);
  return h >> 15 ? -x : x;
}

// Returns elements of all magnitudes; a tenth are zeros of both signs, NaNs, infinities, or the smallest denormals.
inline Bits random_elements(DType dtype, int64_t count, Rng& rng) {
  const auto width = static_cast<size_t>(dtype_bytes(dtype));
  Bits out(static_cast<size_t>(count) * width);
  const uint32_t infinity = dtype == DType::kF32 ? 0x7f800000u : dtype == DType::kBF16 ? 0x7f80u : 0x7c00u;
  const uint32_t minus = dtype == DType::kF32 ? 0x80000000u : 0x8000u;
  for (int64_t i = 0; i < count; ++i) {
    auto x = static_cast<uint32_t>(rng.next());
    if (rng.chance(0.1)) {
      const uint32_t special[] = {0, infinity, infinity + 1, infinity | infinity >> 1, 1};
      x = special[rng.below(5)] | (rng.chance(0.5) ? minus : 0);
    }
    std::memcpy(out.data() + static_cast<size_t>(i) * width, &x, width);
  }
  return out;
}

inline void reference_pack(DType dtype, const Bits& values, int64_t first, int64_t count, Bits* bits) {
  const auto put = [&](int64_t i, bool bit) {
    unsigned char& byte = (*bits)[static_cast<size_t>(i / 8)];
    byte = static_cast<unsigned char>((byte & ~(1 << (i % 8))) | bit << (i % 8));
  };
  int64_t i = first;
  for (; i < first + count; ++i)
    put(i, value_of(dtype, values.data() + static_cast<size_t>((i - first) * dtype_bytes(dtype))) >= 0);
  for (; count && i % 8; ++i) put(i, false);
}

// A vote by its definition, with the tie rule's name; `hash` breaks "kHash" ties, which only the portable kernels
// define.
struct ReferenceVote {
  std::vector<Bits> ballots;
  std::vector<uint32_t> weights;
  std::string ties;
  Bits previous;

  // Computes the bits of the result and of ties, and returns the number of ties.
  template <class Hash>
  int64_t count(int64_t n, Bits* result, Bits* tied, Hash&& hash) const {
    int64_t ties_seen = 0;
    result->assign(sign_bytes(n), 0), tied->assign(sign_bytes(n), 0);
    for (int64_t i = 0; i < n; ++i) {
      int64_t sum = 0;
      for (size_t v = 0; v < ballots.size(); ++v)
        if (weights[v]) sum += sign_of(ballots[v], i) ? int64_t{weights[v]} : -int64_t{weights[v]};
      bool plus = sum > 0;
      if (sum == 0) {
        ++ties_seen;
        (*tied)[static_cast<size_t>(i / 8)] |= static_cast<unsigned char>(1 << (i % 8));
        plus = ties == "kPlus" || (ties == "kPrevious" && sign_of(previous, i)) || (ties == "kHash" && hash(i));
      }
      (*result)[static_cast<size_t>(i / 8)] |= static_cast<unsigned char>(plus << (i % 8));
    }
    return ties_seen;
  }
};

// The tie rules, in the order of their numbers.
inline const std::vector<std::pair<TieRule, std::string>>& tie_rules() {
  static const std::vector<std::pair<TieRule, std::string>> all = {
#define LT_TIE(number, name) {TieRule::name, #name},
#include "portable/ties.def"
#undef LT_TIE
  };
  return all;
}

}  // namespace lowtide::testing
