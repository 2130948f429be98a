#include "backend/sycl/host/signs.h"

#include <bit>
#include <cstring>

#include "backend/sycl/host/launch.h"

namespace lowtide::sycl_host {
namespace {

template <class T = unsigned char>
T* bytes(const std::byte* p) {
  return reinterpret_cast<T*>(const_cast<std::byte*>(p));
}

// Words of 4 bytes are aligned: signs count from the word that `bits` is in.
struct Aligned {
  int64_t before, first, words;  // bytes before `bits`; where the item's signs begin; the words that hold them
};
Aligned aligned(const SignItem& item) {
  const auto before = static_cast<int64_t>(reinterpret_cast<uintptr_t>(item.bits) & 3u);
  const int64_t first = item.first + 8 * before;
  return {before, first, (first + item.count + 31) / 32 - first / 32};
}

}  // namespace

void pack_signs(sycl::queue& queue, Kernels& kernels, const SignItem& item) {
  if (item.count == 0) return;
  const auto [before, first, words] = aligned(item);
  launch(queue, kernels.pack_signs(item.dtype), groups_for(32 * words / sycl_device::kSignWordsAtOnce + 1),
         static_cast<const void*>(item.values), bytes(item.bits) - before, first, item.count);
}

void unpack_signs(sycl::queue& queue, Kernels& kernels, const SignItem& item) {
  if (item.count == 0) return;
  const auto [before, first, words] = aligned(item);
  const auto* const zeros = item.zeros ? bytes<const unsigned char>(item.zeros) - before : nullptr;
  launch(queue, kernels.unpack_signs(item.dtype), groups_for(32 * words),
         bytes<const unsigned char>(item.bits) - before, zeros, item.values, first, item.count);
}

void vote_signs(sycl::queue& queue, Kernels& kernels, Uploads& uploads, const VoteItem& item) {
  if (item.count == 0) return;
  const size_t voters = item.ballots.size();
  const uint32_t sum = weight_sum(item);
  sycl_device::DeviceVote vote{};
  vote.count = item.count;
  vote.first_index = item.first_index, vote.seed = item.seed, vote.step = item.step;
  vote.previous = bytes(item.previous), vote.result = bytes(item.result), vote.zeros = bytes(item.zeros);
  vote.sum = sum, vote.planes = std::bit_width(sum);
  vote.voters = static_cast<int32_t>(voters), vote.ties = static_cast<int32_t>(item.ties);

  // One after another: the vote, its ballots' addresses, its weights.
  const size_t ballots_at = sizeof vote, weights_at = ballots_at + voters * sizeof(void*);
  const size_t size = weights_at + voters * sizeof(uint32_t);
  const sycl::kernel& kernel = kernels.vote_signs();
  Uploads::Slot& slot = uploads.acquire(size);
  std::byte* const host = slot.host.get();
  std::memcpy(host, &vote, sizeof vote);
  if (voters) std::memcpy(host + ballots_at, item.ballots.data(), voters * sizeof(void*));
  for (size_t v = 0; v < voters; ++v) {
    const uint32_t weight = weight_of(item, v);
    std::memcpy(host + weights_at + v * sizeof weight, &weight, sizeof weight);
  }
  slot.used = queue.memcpy(slot.device.get(), host, size);
  const std::byte* const device = slot.device.get();
  slot.used =
      launch(queue, kernel, groups_for((item.count + 31) / 32), bytes<const sycl_device::DeviceVote>(device),
             bytes<const unsigned char* const>(device + ballots_at), bytes<const uint32_t>(device + weights_at));
}

}  // namespace lowtide::sycl_host
