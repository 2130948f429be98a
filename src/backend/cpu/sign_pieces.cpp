#include "backend/cpu/sign_pieces.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>

#include "core/thread_pool.h"

namespace lowtide::cpu {
namespace {

// Elements that a thread takes at a time: 128 KiB or more, 5 us or more, and few enough that threads finish together.
constexpr int64_t kPieceElements = 64 * 1024;
// Bytes of ballots for the same.
constexpr int64_t kPieceBytes = 256 * 1024;

// Calls work(piece) for pieces [0, pieces).
template <class Fn>
void for_each_index(int threads, int64_t pieces, Fn&& work) {
  std::atomic<int64_t> next{0};
  run_parallel(static_cast<int>(std::min<int64_t>(threads, pieces)), [&](int) {
    for (int64_t piece; (piece = next.fetch_add(1, std::memory_order_relaxed)) < pieces;) work(piece);
  });
}

// Cuts the elements of all items, laid end to end, into pieces; a cut within an item is moved down to a multiple of
// kSignAlignment signs. work(item, number of its first element, how many).
template <class Fn>
void for_each_piece(std::span<const SignItem> items, int threads, Fn&& work) {
  std::vector<int64_t> starts(items.size() + 1);
  for (size_t i = 0; i < items.size(); ++i) starts[i + 1] = starts[i] + items[i].count;
  const int64_t total = starts.back();
  for_each_index(threads, (total + kPieceElements - 1) / kPieceElements, [&](int64_t piece) {
    const int64_t begin = piece * kPieceElements, end = std::min(total, begin + kPieceElements);
    auto i = static_cast<size_t>(std::upper_bound(starts.begin(), starts.end(), begin) - starts.begin()) - 1;
    for (; i < items.size() && starts[i] < end; ++i) {
      const auto cut = [&](int64_t element) {
        if (element <= 0) return int64_t{0};
        if (element >= items[i].count) return items[i].count;
        return std::max<int64_t>(0, (items[i].first + element) / kSignAlignment * kSignAlignment - items[i].first);
      };
      const int64_t from = cut(begin - starts[i]), to = cut(end - starts[i]);
      if (from < to) work(items[i], from, to - from);
    }
  });
}

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
  for_each_index(threads, (signs + piece - 1) / piece,
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
  for_each_piece(items, threads, [&](const SignItem& item, int64_t from, int64_t count) {
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
  for_each_piece(items, threads, [&](const SignItem& item, int64_t from, int64_t count) {
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
