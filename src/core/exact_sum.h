// Sums floats times powers of two exactly, in a fixed-point number wide enough for all of them, so that the order of
// the terms does not matter.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>

namespace lowtide {

class ExactSum {
 public:
  // The largest and smallest exponent that add() accepts, and the largest number of terms.
  static constexpr int kLargestExponent = 256, kSmallestExponent = -256;
  static constexpr int64_t kMostTerms = int64_t{1} << 48;

  // Adds x * 2^exponent, x >= 0. If x is not finite, the sum becomes NaN.
  void add(float x, int exponent);
  // Adds count * 2^exponent, a multiple of the smallest term that add() accepts and at most its largest.
  void add_count(uint64_t count, int exponent);
  void merge(const ExactSum& other);

  // The sum rounded to double, deterministically: equal sums give equal bits. 0 without terms.
  double value() const;
  // This sum less another, rounded likewise: only their exact difference decides.
  double minus(const ExactSum& other) const;

  static constexpr int kLimbBits = 32;
  static constexpr int kLowest = kSmallestExponent - 149;  // the exponent of bit 0, which is the smallest float's
  // Wide enough for kMostTerms terms of the largest float times 2^kLargestExponent.
  static constexpr int kLimbs = (128 + kLargestExponent + 48 - kLowest) / kLimbBits + 2;
  using Limbs = std::array<int64_t, kLimbs>;
  // The sum as 32-bit digits, lowest first. Equal sums have equal limbs; the limbs of several sums may be added and
  // passed to set_limbs(). Limbs cannot express NaN.
  Limbs limbs() const;
  void set_limbs(const Limbs& limbs);

 private:
  static constexpr int64_t kTermsBetweenCarries = int64_t{1} << 30;

  void add_word(uint32_t word, int at);  // at: where the word's bit 0 goes
  void count_term();
  static void carry(uint64_t (&limbs)[kLimbs]);

  uint64_t limbs_[kLimbs] = {};  // kLimbBits of the sum each; the bits above are carries
  int64_t terms_ = 0;            // added since the last carry
  bool finite_ = true;
};

inline void ExactSum::add(float x, int exponent) {
  uint32_t bits;
  std::memcpy(&bits, &x, sizeof bits);
  const uint32_t field = bits >> 23 & 0xff;
  if (field == 0xff) finite_ = false;
  const uint32_t mantissa = (bits & 0x7fffffu) | (field ? 0x800000u : 0u);
  // x = mantissa 2^(max(field, 1) - 150)
  const int at = static_cast<int>(field ? field : 1) - 150 + exponent - kLowest;
  add_word(mantissa, at);
  count_term();
}

inline void ExactSum::add_word(uint32_t word, int at) {
  const uint64_t shifted = uint64_t{word} << (at % kLimbBits);
  limbs_[at / kLimbBits] += shifted & 0xffffffffu;
  limbs_[at / kLimbBits + 1] += shifted >> kLimbBits;
}

inline void ExactSum::count_term() {
  if (++terms_ < kTermsBetweenCarries) return;
  carry(limbs_);
  terms_ = 0;
}

inline void ExactSum::add_count(uint64_t count, int exponent) {
  const int below = std::min(std::max(kLowest - exponent, 0), 63);
  const int at = exponent + below - kLowest;
  count >>= below;
  add_word(static_cast<uint32_t>(count), at);
  add_word(static_cast<uint32_t>(count >> 32), at + 32);
  count_term();
}

inline void ExactSum::merge(const ExactSum& other) {
  finite_ = finite_ && other.finite_;
  const Limbs theirs = other.limbs();
  for (int i = 0; i < kLimbs; ++i) limbs_[i] += static_cast<uint64_t>(theirs[static_cast<size_t>(i)]);
  count_term();
}

inline ExactSum::Limbs ExactSum::limbs() const {
  uint64_t limbs[kLimbs];
  std::memcpy(limbs, limbs_, sizeof limbs);
  carry(limbs);
  Limbs out;
  std::copy(limbs, limbs + kLimbs, out.begin());
  return out;
}

inline void ExactSum::set_limbs(const Limbs& limbs) {
  *this = ExactSum();
  std::copy(limbs.begin(), limbs.end(), limbs_);
  carry(limbs_);
}

inline void ExactSum::carry(uint64_t (&limbs)[kLimbs]) {
  for (int i = 0; i + 1 < kLimbs; ++i) {
    limbs[i + 1] += limbs[i] >> kLimbBits;
    limbs[i] &= 0xffffffffu;
  }
}

inline double ExactSum::value() const {
  if (!finite_) return std::numeric_limits<double>::quiet_NaN();
  const Limbs limbs = this->limbs();  // identical for equal sums
  double sum = 0;
  for (size_t i = 0; i < limbs.size(); ++i)
    sum += std::ldexp(static_cast<double>(limbs[i]), kLowest + static_cast<int>(i) * kLimbBits);
  return sum;
}

inline double ExactSum::minus(const ExactSum& other) const {
  if (!finite_ || !other.finite_) return std::numeric_limits<double>::quiet_NaN();
  Limbs more = limbs(), less = other.limbs();
  const bool negative = std::lexicographical_compare(more.rbegin(), more.rend(), less.rbegin(), less.rend());
  if (negative) more.swap(less);
  int64_t borrowed = 0;
  for (size_t i = 0; i < more.size(); ++i) {
    more[i] -= less[i] + borrowed;
    borrowed = more[i] < 0 ? 1 : 0;
    more[i] += borrowed << kLimbBits;
  }
  ExactSum difference;
  difference.set_limbs(more);
  return negative ? -difference.value() : difference.value();
}

}  // namespace lowtide
