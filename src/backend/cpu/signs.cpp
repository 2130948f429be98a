#include "backend/cpu/sign_kernel.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <type_traits>

namespace lowtide::cpu {
namespace {
#include "portable/portable.h"
#include "portable/sign.h"
#include "portable/feedback.h"

static_assert(std::endian::native == std::endian::little);
static_assert(kFeedbackSigns == kFeedbackBlock && kSignAlignment % kFeedbackSigns == 0);
constexpr int64_t kWord = 64;

// A float as an element.
template <class T>
typename SignBits<T>::Raw stored(float x) {
  if constexpr (std::is_same_v<T, float>) return bits(x);
  if constexpr (std::is_same_v<T, bf16>) return static_cast<u16>(bf16_encode(x));
  if constexpr (std::is_same_v<T, f16>) return static_cast<u16>(f16_encode(x));
}

bool bit_at(const std::byte* bits, int64_t i) { return (std::to_integer<unsigned>(bits[i / 8]) >> (i % 8) & 1u) != 0; }

void put_bit(std::byte* bits, int64_t i, bool bit) {
  const std::byte mask{static_cast<unsigned char>(1u << (i % 8))};
  bits[i / 8] = bit ? bits[i / 8] | mask : bits[i / 8] & ~mask;
}

template <class T>
typename SignBits<T>::Raw raw_at(const std::byte* values, int64_t i) {
  typename SignBits<T>::Raw x;
  std::memcpy(&x, values + i * static_cast<int64_t>(sizeof x), sizeof x);
  return x;
}

template <class T>
void pack(const SignItem& item) {
  const auto* values = static_cast<const std::byte*>(item.values);
  const int64_t begin = item.first, end = item.first + item.count;
  bool finite = true;
  int64_t i = begin;
  while (i < end) {
    const int64_t stop = std::min(end, (i / kSignBlock + 1) * kSignBlock);
    bool present = false;
    for (const int64_t block = i / kSignBlock; i < stop; ++i) {
      const auto x = raw_at<T>(values, i - begin);
      put_bit(item.bits, i, is_plus<T>(x, item.zero_is_plus));
      present |= !is_zero<T>(x);
      finite &= is_finite<T>(x);
      if (item.presence && i + 1 == stop) put_bit(item.presence, block, present);
    }
  }
  if (item.nonfinite && !finite) *item.nonfinite = 1;
  if (item.count == 0) return;
  for (; i % 8 != 0; ++i) put_bit(item.bits, i, false);
  if (!item.presence) return;
  for (int64_t block = (end + kSignBlock - 1) / kSignBlock; block % 8 != 0; ++block)
    put_bit(item.presence, block, false);
}

template <class T>
void unpack(const SignItem& item) {
  auto* values = static_cast<std::byte*>(item.values);
  for (int64_t i = 0; i < item.count; ++i) {
    const int64_t at = item.first + i;
    const bool plus = bit_at(item.bits, at);
    const bool zero =
        (item.zeros && bit_at(item.zeros, at)) || (item.presence && !bit_at(item.presence, at / kSignBlock));
    auto x = sign_value<T>(plus, zero);
    if (item.scales && !zero) {
      const float scale = bf16_decode(u32{item.scales[at / kFeedbackSigns]});
      x = stored<T>(plus ? scale : -scale);
    }
    std::memcpy(values + i * static_cast<int64_t>(sizeof x), &x, sizeof x);
  }
}

// Calls word(first sign, signs, bytes) for each word of 64 signs of [begin, end).
template <class Fn>
void for_each_word(int64_t begin, int64_t end, Fn&& word) {
  for (int64_t first = begin; first < end; first += kWord) {
    const int64_t here = std::min(kWord, end - first);
    word(first, here, static_cast<size_t>((here + 7) / 8));
  }
}
u64 load_word(const std::byte* bits, int64_t first, size_t bytes) {
  u64 word = 0;
  std::memcpy(&word, bits + first / 8, bytes);
  return word;
}
u64 inside_of(int64_t signs) { return ~u64{0} >> (kWord - signs); }

}  // namespace

void pack_signs(const SignItem& item) {
  item.dtype == DType::kF32 ? pack<float>(item) : item.dtype == DType::kBF16 ? pack<bf16>(item) : pack<f16>(item);
}

void unpack_signs(const SignItem& item) {
  item.dtype == DType::kF32 ? unpack<float>(item) : item.dtype == DType::kBF16 ? unpack<bf16>(item) : unpack<f16>(item);
}

void vote_signs(const VoteRun& run) {
  const VoteItem& item = run.item;
  const Voters& voters = run.voters;
  const auto count = static_cast<int>(item.ballots.size());
  for_each_word(run.begin, run.end, [&](int64_t first, int64_t signs, size_t bytes) {
    u64 plane[32];
    count_votes(plane, voters.planes, voters, count,
                [&](int v) { return load_word(item.ballots[static_cast<size_t>(v)], first, bytes); });
    static_assert(kWord == kSignBlock);
    u32 votes = voters.sum;
    if (!item.presence.empty()) {
      votes = 0;
      for (size_t v = 0; v < item.presence.size(); ++v)
        if (voters[v] && bit_at(item.presence[v], first / kWord)) votes += voters[v];
      put_bit(item.result_presence, first / kWord, votes > 0);
    }
    const Majority<u64> of = majority(plane, voters.planes, votes);
    const u64 result =
        inside_of(signs) &
        break_ties(of, static_cast<Tie>(item.ties), item.seed, item.step, item.first_index + static_cast<u64>(first),
                   item.ties == TieRule::kPrevious ? load_word(item.previous, first, bytes) : u64{0});
    const u64 tie = inside_of(signs) & of.tie, kept = votes > 0 || item.presence.empty() ? ~u64{0} : u64{0};
    const u64 out = result & kept, zeros = tie & kept;
    std::memcpy(item.result + first / 8, &out, bytes);
    if (item.ties == TieRule::kZero) std::memcpy(item.zeros + first / 8, &zeros, bytes);
  });
  if (item.presence.empty() || run.end < item.count) return;
  for (int64_t block = (item.count + kSignBlock - 1) / kSignBlock; block % 8 != 0; ++block)
    put_bit(item.result_presence, block, false);
}

void count_signs(const CountRun& run) {
  const CountItem& item = run.item;
  for_each_word(run.begin, run.end, [&](int64_t first, int64_t signs, size_t bytes) {
    u64 plane[32];
    count_votes(plane, run.voters.planes, run.voters, static_cast<int>(item.ballots.size()),
                [&](int v) { return load_word(item.ballots[static_cast<size_t>(v)], first, bytes); });
    for (size_t j = 0; j < item.planes.size(); ++j) {
      const u64 word = static_cast<int>(j) < run.voters.planes ? plane[j] & inside_of(signs) : u64{0};
      std::memcpy(item.planes[j] + first / 8, &word, bytes);
    }
  });
}

}  // namespace lowtide::cpu
