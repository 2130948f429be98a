#include "backend/cpu/signs.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <vector>

namespace lowtide::cpu {
namespace {
#include "portable/portable.h"
#include "portable/sign.h"

static_assert(std::endian::native == std::endian::little);
constexpr int64_t kWord = 64;

bool bit_at(const std::byte* bits, int64_t i) { return (std::to_integer<unsigned>(bits[i / 8]) >> (i % 8) & 1u) != 0; }

void put_bit(std::byte* bits, int64_t i, bool bit) {
  const std::byte mask{static_cast<unsigned char>(1u << (i % 8))};
  bits[i / 8] = bit ? bits[i / 8] | mask : bits[i / 8] & ~mask;
}

template <class T>
bool plus_at(const std::byte* values, int64_t i) {
  typename SignBits<T>::Raw x;
  std::memcpy(&x, values + i * static_cast<int64_t>(sizeof x), sizeof x);
  return is_plus<T>(x);
}

template <class T>
void pack(const SignItem& item) {
  const auto* values = static_cast<const std::byte*>(item.values);
  const int64_t begin = item.first, end = item.first + item.count;
  int64_t i = begin;
  while (i < end) {
    if (i % 8 == 0 && i + kWord <= end) {
      u64 word = 0;
      for (int64_t k = 0; k < kWord; ++k) word |= u64{plus_at<T>(values, i - begin + k)} << k;
      std::memcpy(item.bits + i / 8, &word, sizeof word);
      i += kWord;
    } else {
      put_bit(item.bits, i, plus_at<T>(values, i - begin));
      ++i;
    }
  }
  for (; i % 8 != 0 && item.count > 0; ++i) put_bit(item.bits, i, false);
}

template <class T>
void unpack(const SignItem& item) {
  auto* values = static_cast<std::byte*>(item.values);
  for (int64_t i = 0; i < item.count; ++i) {
    const int64_t at = item.first + i;
    const auto x = sign_value<T>(bit_at(item.bits, at), item.zeros && bit_at(item.zeros, at));
    std::memcpy(values + i * static_cast<int64_t>(sizeof x), &x, sizeof x);
  }
}

}  // namespace

void pack_signs(const SignItem& item) {
  item.dtype == DType::kF32 ? pack<float>(item) : item.dtype == DType::kBF16 ? pack<bf16>(item) : pack<f16>(item);
}

void unpack_signs(const SignItem& item) {
  item.dtype == DType::kF32 ? unpack<float>(item) : item.dtype == DType::kBF16 ? unpack<bf16>(item) : unpack<f16>(item);
}

void vote_signs(const VoteItem& item) {
  const uint32_t sum = weight_sum(item);
  const int planes = std::bit_width(sum);
  std::vector<u32> weights;
  for (size_t v = 0; v < item.ballots.size(); ++v) weights.push_back(weight_of(item, v));
  for (int64_t first = 0; first < item.count; first += kWord) {
    const int64_t here = std::min(kWord, item.count - first), at = first / 8;
    const auto bytes = static_cast<size_t>((here + 7) / 8);
    const u64 inside = ~u64{0} >> (kWord - here);
    const auto word_of = [&](const std::byte* bits) {
      u64 word = 0;
      std::memcpy(&word, bits + at, bytes);
      return word;
    };
    u64 plane[32];
    count_votes(plane, planes, weights.data(), static_cast<int>(weights.size()),
                [&](int v) { return word_of(item.ballots[static_cast<size_t>(v)]); });
    const Majority<u64> of = majority(plane, planes, sum);
    const u64 result = inside & break_ties(of, static_cast<Tie>(item.ties), item.seed, item.step,
                                           item.first_index + static_cast<u64>(first),
                                           item.ties == TieRule::kPrevious ? word_of(item.previous) : u64{0});
    const u64 tie = inside & of.tie;
    std::memcpy(item.result + at, &result, bytes);
    if (item.ties == TieRule::kZero) std::memcpy(item.zeros + at, &tie, bytes);
  }
}

}  // namespace lowtide::cpu
