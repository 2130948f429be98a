// Cuts sign operations into pieces for the threads. Kernels see contiguous runs.
#include "backend/cpu/sign_kernels.h"

#include <algorithm>
#include <atomic>
#include <cstring>

#include "backend/catalog.h"
#include "backend/cpu/cpu_backend.h"
#include "backend/cpu/pieces.h"

namespace lowtide::cpu {
namespace {
#include "portable/portable.h"
#include "portable/feedback.h"

// The bytes of ballots that a thread takes at a time, as for other pieces (pieces.h).
constexpr int64_t kPieceBytes = 256 * 1024;

int64_t count_of(const SignItem& item) { return item.count; }

SignItem part_of(const SignItem& item, int64_t from, int64_t count) {
  SignItem part = item;
  part.first += from;
  part.count = count;
  part.values = static_cast<std::byte*>(item.values) + from * dtype_bytes(item.dtype);
  return part;
}

// Cuts signs into pieces of kPieceBytes of ballots, or a share for each thread.
template <class Fn>
void for_each_cut(int64_t signs, size_t voters, int threads, Fn&& work) {
  const int64_t bytes_each = static_cast<int64_t>(std::max<size_t>(voters, 1));
  const int64_t wanted = std::max(8 * kPieceBytes / bytes_each, signs / (8 * int64_t{std::max(threads, 1)}));
  const int64_t piece = std::max<int64_t>(1, std::min(wanted, 32 * kPieceBytes / bytes_each) / kVoteCut) * kVoteCut;
  parallel_for((signs + piece - 1) / piece, threads,
               [&](int64_t i) { work(i * piece, std::min(signs, (i + 1) * piece)); });
}

// Returns the bytes of the last-level cache, or 0 (nothing fits) if unknown.
int64_t cache_bytes() {
  static const int64_t bytes = last_cache_bytes();
  return bytes;
}

// A piece of a sign item (pieces.h) consists of whole feedback blocks and whole bytes of presence.
static_assert(kFeedbackBlock == kFeedbackSigns && kFeedbackBlock == kSignAlignment);

// Sets bits of a byte in which other threads may be setting bits.
void set_bits(std::byte* byte, uint8_t bits) {
  if (bits) std::atomic_ref(reinterpret_cast<uint8_t&>(*byte)).fetch_or(bits, std::memory_order_relaxed);
}

void apply_piece(const SignStepKernels& kernels, const ApplyItem& item, int64_t begin, int64_t end) {
  const ApplyKernel kernel = kernels.apply[static_cast<int>(item.dtype)];
  const int64_t width = dtype_bytes(item.dtype);
  const auto apply = [&](void* param, int64_t from, int64_t n) {
    const int64_t sign = item.first + from;
    kernel({param, n, item.bits + sign / 8, item.zeros ? item.zeros + sign / 8 : nullptr,
            item.presence ? item.presence + sign / kSignBlock / 8 : nullptr, item.lr, item.decay});
  };
  if (item.layout->contiguous) return apply(static_cast<std::byte*>(item.param) + begin * width, begin, end - begin);
  // A strided tensor is staged in the cache; blocks without presence are written back unchanged.
  for (int64_t from = begin; from < end; from += kSignAlignment) {
    alignas(64) std::byte p[kSignAlignment * 4];
    const int64_t n = std::min(kSignAlignment, end - from);
    item.layout->gather(item.param, width, from, n, p);
    apply(p, from, n);
    item.layout->scatter(p, width, from, n, item.param);
  }
}

void feedback_piece(const SignStepKernels& kernels, const FeedbackItem& item, int64_t begin, int64_t end) {
  const auto run = [&](const void* values, DType dtype, float value_scale, int64_t from, int64_t n) {
    const FeedbackKernel kernel = kernels.feedback[item.codes ? item.codec : kCodecs][static_cast<int>(dtype)];
    const int64_t sign = item.first + from;
    kernel(
        {values, value_scale, n,
         item.codes ? static_cast<std::byte*>(item.codes) + codec_info(item.codec).format[1].code_bytes(from) : nullptr,
         item.scales ? item.scales + from / kBlockElements : nullptr, item.bits + sign / 8,
         item.bit_scales + sign / kFeedbackBlock});
  };
  if (item.values)
    return run(static_cast<const std::byte*>(item.values) + begin * dtype_bytes(item.dtype), item.dtype,
               item.value_scale, begin, end - begin);
  const float inverse = feedback_inverse(weight_sum(item.ballots, item.weights));
  for (int64_t from = begin; from < end; from += kFeedbackBlock) {
    alignas(64) float sums[kFeedbackBlock] = {};
    const auto n = static_cast<int>(std::min<int64_t>(kFeedbackBlock, end - from));
    const int64_t sign = item.first + from;
    for (size_t v = 0; v < item.ballots.size(); ++v)
      if (const uint32_t weight = weight_of(item.weights, v))
        kernels.add_ballot(item.ballots[v] + sign / 8,
                           feedback_weighted_scale(weight, item.ballot_scales[v][sign / kFeedbackBlock]), n, sums);
    run(sums, DType::kF32, inverse, from, n);
  }
}

}  // namespace

Voters::Voters(std::span<const std::byte* const> all, std::span<const uint32_t> each, bool equal_is_one)
    : ballots(all), weights(each), equal(equal_is_one) {
  uint32_t seen = 0;
  for (size_t v = 0; equal && v < weights.size(); ++v) {
    if (weights[v] == 0) continue;
    equal = seen == 0 || weights[v] == seen;
    seen = weights[v];
  }
  for (size_t v = 0; v < ballots.size(); ++v) {
    sum += (*this)[v];
    bits |= (*this)[v];
  }
  planes = std::bit_width(sum);
}

void pack_signs(const SignKernels& kernels, std::span<const SignItem> items, bool sign_bit, int threads) {
  for_each_sign_piece(items, threads, count_of, [&](const SignItem& item, int64_t from, int64_t count) {
    SignItem part = part_of(item, from, count);
    uint32_t nonfinite = 0;  // items may share a flag
    if (item.nonfinite) part.nonfinite = &nonfinite;
    kernels.pack[static_cast<int>(item.dtype)]({part, sign_bit});
    if (nonfinite) std::atomic_ref(*item.nonfinite).store(1, std::memory_order_relaxed);
  });
}

void unpack_signs(const SignKernels& kernels, std::span<const SignItem> items, int threads) {
  int64_t bytes = 0;
  for (const SignItem& item : items) check(item), bytes += item.count * dtype_bytes(item.dtype);
  const bool stream = bytes > cache_bytes();
  for_each_sign_piece(items, threads, count_of, [&](const SignItem& item, int64_t from, int64_t count) {
    kernels.unpack[static_cast<int>(item.dtype)]({part_of(item, from, count), stream});
  });
}

void pack_sign_bits(const SignItem& item, int threads) {
  static const SignKernels best = pick_signs(target_bit(""));
  pack_signs(best, {&item, 1}, true, threads);
}

void vote_signs(const SignKernels& kernels, const VoteItem& item, int threads) {
  check(item);
  const Voters voters(item.ballots, item.weights, true);
  for_each_cut(item.count, item.ballots.size(), threads, [&](int64_t begin, int64_t end) {
    kernels.vote({item, voters, begin, end});
  });
}

void count_signs(const SignKernels& kernels, const CountItem& item, int threads) {
  check(item);
  const Voters voters(item.ballots, item.weights, false);
  for_each_cut(item.count, item.ballots.size(), threads, [&](int64_t begin, int64_t end) {
    kernels.count({item, voters, begin, end});
  });
}

float* BallotTile::begin(int64_t sign, int n) {
  lead_ = static_cast<int>(sign % kWord);
  first_word_ = sign / kWord;
  count_ = n;
  words_ = (lead_ + n + kWord - 1) / kWord;
  std::fill(values_, values_ + words_ * kWord, 0.f);
  return values_ + lead_;
}

void BallotTile::end(const SignStepKernels& kernels, bool zero_is_plus, std::byte* bits, std::byte* presence) const {
  constexpr int kMostWords = kBallotTile / kWord + 2;
  uint64_t word[kMostWords];
  bool present[kMostWords];
  kernels.pack(values_, words_, zero_is_plus, word, present);
  // Other pieces share the first and last words, so this writes only its own signs, byte by byte.
  const int behind = words_ * kWord - lead_ - count_;
  word[0] &= ~uint64_t{0} << lead_;
  word[words_ - 1] &= ~uint64_t{0} >> behind;
  for (int w = 0; w < words_; ++w) {
    std::byte* const to = bits + 8 * (first_word_ + w);
    if ((w > 0 || lead_ == 0) && (w + 1 < words_ || behind == 0))
      std::memcpy(to, word + w, sizeof *word);
    else
      for (int b = 0; b < 8; ++b) set_bits(to + b, static_cast<uint8_t>(word[w] >> (8 * b)));
  }
  if (!presence) return;
  uint8_t byte[kMostWords / 8 + 2] = {};
  const int shift = static_cast<int>(first_word_ % 8), bytes = (shift + words_ + 7) / 8;
  for (int w = 0; w < words_; ++w) byte[(shift + w) / 8] |= static_cast<uint8_t>(present[w] << ((shift + w) % 8));
  std::byte* const to = presence + first_word_ / 8;
  for (int b = 0; b < bytes; ++b)
    if (b == 0 || b + 1 == bytes)
      set_bits(to + b, byte[b]);
    else
      to[b] = std::byte{byte[b]};
}

void apply_signs(const SignStepKernels& kernels, std::span<const ApplyItem> items, int threads) {
  for_each_sign_piece(
      items, threads, [](const ApplyItem& item) { return item.layout->numel; },
      [&](const ApplyItem& item, int64_t begin, int64_t n) { apply_piece(kernels, item, begin, begin + n); });
}

void feedback(const SignStepKernels& kernels, std::span<const FeedbackItem> items, int threads) {
  for_each_sign_piece(
      items, threads, [](const FeedbackItem& item) { return item.count; },
      [&](const FeedbackItem& item, int64_t begin, int64_t n) { feedback_piece(kernels, item, begin, begin + n); });
}

}  // namespace lowtide::cpu
