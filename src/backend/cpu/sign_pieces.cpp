#include "backend/cpu/sign_kernel.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>

#include "backend/cpu/pieces.h"

namespace lowtide::cpu {
namespace {

// Bytes of ballots that a thread takes at a time, as those of other pieces (pieces.h).
constexpr int64_t kPieceBytes = 256 * 1024;

int64_t count_of(const SignItem& item) { return item.count; }

SignItem part_of(const SignItem& item, int64_t from, int64_t count) {
  SignItem part = item;
  part.first += from;
  part.count = count;
  part.values = static_cast<std::byte*>(item.values) + from * dtype_bytes(item.dtype);
  return part;
}

// Signs of a piece: kPieceBytes of ballots, or a share for each thread.
template <class Fn>
void for_each_cut(int64_t signs, size_t voters, int threads, Fn&& work) {
  const int64_t bytes_each = static_cast<int64_t>(std::max<size_t>(voters, 1));
  const int64_t wanted = std::max(8 * kPieceBytes / bytes_each, signs / (8 * int64_t{std::max(threads, 1)}));
  const int64_t piece = std::max<int64_t>(1, std::min(wanted, 32 * kPieceBytes / bytes_each) / kVoteCut) * kVoteCut;
  parallel_for((signs + piece - 1) / piece, threads,
               [&](int64_t i) { work(i * piece, std::min(signs, (i + 1) * piece)); });
}

// Bytes of the last-level cache; where it is not known, none is assumed to hold anything.
int64_t cache_bytes() {
  static const int64_t bytes = std::max<int64_t>(0, sysconf(_SC_LEVEL3_CACHE_SIZE));
  return bytes;
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

void pack_signs(const SignKernels& kernels, std::span<const SignItem> items, int threads) {
  for_each_sign_piece(items, threads, count_of, [&](const SignItem& item, int64_t from, int64_t count) {
    SignItem part = part_of(item, from, count);
    uint32_t nonfinite = 0;  // items may share theirs
    if (item.nonfinite) part.nonfinite = &nonfinite;
    kernels.pack[static_cast<int>(item.dtype)](part);
    if (nonfinite) std::atomic_ref(*item.nonfinite).store(1, std::memory_order_relaxed);
  });
}

void unpack_signs(const SignKernels& kernels, std::span<const SignItem> items, int threads) {
  int64_t bytes = 0;
  for (const SignItem& item : items) bytes += item.count * dtype_bytes(item.dtype);
  const bool stream = bytes > cache_bytes();
  for_each_sign_piece(items, threads, count_of, [&](const SignItem& item, int64_t from, int64_t count) {
    kernels.unpack[static_cast<int>(item.dtype)]({part_of(item, from, count), stream});
  });
}

void vote_signs(const SignKernels& kernels, const VoteItem& item, int threads) {
  const Voters voters(item.ballots, item.weights, true);
  for_each_cut(item.count, item.ballots.size(), threads, [&](int64_t begin, int64_t end) {
    kernels.vote({item, voters, begin, end});
  });
}

void count_signs(const SignKernels& kernels, const CountItem& item, int threads) {
  const Voters voters(item.ballots, item.weights, false);
  for_each_cut(item.count, item.ballots.size(), threads, [&](int64_t begin, int64_t end) {
    kernels.count({item, voters, begin, end});
  });
}

}  // namespace lowtide::cpu
