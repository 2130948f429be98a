#include "backend/sycl/host/signs.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <vector>

#include "backend/sycl/host/launch.h"

namespace lowtide::sycl_host {
namespace {

static_assert(kSignBlock == 32 * kernels::kWordsOfBlock);
constexpr int64_t kPackedAtOnce = 32 * kernels::kSignWordsAtOnce;

template <class T = unsigned char>
T* bytes(const std::byte* p) {
  return reinterpret_cast<T*>(const_cast<std::byte*>(p));
}

kernels::DeviceSignItem device_item(const SignItem& item) {
  return {item.values,    bytes(item.bits), bytes(item.presence), bytes(item.zeros), item.scales,
          item.nonfinite, item.first,       item.count,           item.zero_is_plus};
}

// What a kernel reads besides signs: an item, and arrays behind it, which begin where their elements are aligned.
class Arguments {
 public:
  // Returns where the array will be.
  size_t add(const void* data, size_t size) {
    const size_t at = (bytes_.size() + kAligned - 1) / kAligned * kAligned;
    bytes_.resize(at + size);
    if (size) std::memcpy(bytes_.data() + at, data, size);
    return at;
  }
  template <class T>
  size_t add(std::span<const T> array) {
    return add(array.data(), array.size_bytes());
  }
  size_t add_weights(std::span<const std::byte* const> ballots, std::span<const uint32_t> weights) {
    const std::vector<uint32_t> ones(weights.empty() ? ballots.size() : 0, 1);
    return add(weights.empty() ? std::span<const uint32_t>(ones) : weights);
  }

  // Queues their copy to a slot's device memory.
  Uploads::Slot& upload(sycl::queue& queue, Uploads& uploads) const {
    Uploads::Slot& slot = uploads.acquire(bytes_.size());
    std::memcpy(slot.host.get(), bytes_.data(), bytes_.size());
    slot.used = queue.memcpy(slot.device.get(), slot.host.get(), bytes_.size());
    return slot;
  }

 private:
  static constexpr size_t kAligned = 8;
  std::vector<std::byte> bytes_;
};

template <class T>
T* at(const Uploads::Slot& slot, size_t offset) {
  return bytes<T>(slot.device.get() + offset);
}

using Row = const unsigned char* const;
using kernels::DeviceFeedback;
using kernels::DeviceVote;

// Work-items that take a word of 32 signs each.
int64_t groups_for_words(int64_t signs) { return groups_for((signs + 31) / 32); }

}  // namespace

void pack_signs(sycl::queue& queue, Kernels& kernels, const SignItem& item) {
  if (item.count == 0) return;
  const int64_t units = (item.first + item.count + kPackedAtOnce - 1) / kPackedAtOnce - item.first / kPackedAtOnce;
  launch(queue, kernels.pack_signs(item.dtype), groups_for(32 * units), device_item(item));
}

void unpack_signs(sycl::queue& queue, Kernels& kernels, const SignItem& item) {
  if (item.count == 0) return;
  const int64_t words = (item.first + item.count + 31) / 32 - item.first / 32;
  launch(queue, kernels.unpack_signs(item.dtype), groups_for(32 * words), device_item(item));
}

void vote_signs(sycl::queue& queue, Kernels& kernels, Uploads& uploads, const VoteItem& item) {
  if (item.count == 0) return;
  const uint32_t sum = weight_sum(item);
  const bool presence = !item.presence.empty();
  DeviceVote vote{};
  vote.count = item.count;
  vote.first_index = item.first_index, vote.seed = item.seed, vote.step = item.step;
  vote.previous = bytes(item.previous), vote.result = bytes(item.result), vote.zeros = bytes(item.zeros);
  vote.result_presence = presence ? bytes(item.result_presence) : nullptr;
  vote.sum = sum, vote.planes = std::bit_width(sum);
  vote.voters = static_cast<int32_t>(item.ballots.size()), vote.ties = static_cast<int32_t>(item.ties);

  const sycl::kernel& kernel = kernels.vote_signs();
  const sycl::kernel* const of_presence = presence ? &kernels.vote_presence() : nullptr;
  Arguments arguments;
  const size_t vote_at = arguments.add(&vote, sizeof vote), ballots_at = arguments.add(item.ballots),
               weights_at = arguments.add_weights(item.ballots, item.weights),
               presence_at = arguments.add(item.presence);
  Uploads::Slot& slot = arguments.upload(queue, uploads);
  const auto* const on_device = at<const DeviceVote>(slot, vote_at);
  const auto* const weights = at<const uint32_t>(slot, weights_at);
  slot.used = launch(queue, kernel, groups_for_words(item.count), on_device, at<Row>(slot, ballots_at), weights,
                     at<Row>(slot, presence_at));
  if (of_presence)
    slot.used = launch(queue, *of_presence, groups_for(presence_bytes(item.count)), on_device, weights,
                       at<Row>(slot, presence_at));
}

void count_signs(sycl::queue& queue, Kernels& kernels, Uploads& uploads, const CountItem& item) {
  if (item.count == 0) return;
  // Planes that no sum of weights reaches are a kernel's of their own: zeros.
  constexpr size_t kMost = 31;
  const size_t counted = std::min(item.planes.size(), kMost);
  DeviceVote vote{};
  vote.count = item.count;
  vote.planes = static_cast<int32_t>(counted), vote.voters = static_cast<int32_t>(item.ballots.size());
  const sycl::kernel& kernel = kernels.count_signs();
  const sycl::kernel* const fill = counted < item.planes.size() ? &kernels.fill() : nullptr;
  Arguments arguments;
  const size_t vote_at = arguments.add(&vote, sizeof vote), ballots_at = arguments.add(item.ballots),
               weights_at = arguments.add_weights(item.ballots, item.weights),
               planes_at = arguments.add(std::span<std::byte*const>(item.planes));
  Uploads::Slot& slot = arguments.upload(queue, uploads);
  slot.used = launch(queue, kernel, groups_for_words(item.count), at<const DeviceVote>(slot, vote_at),
                     at<Row>(slot, ballots_at), at<const uint32_t>(slot, weights_at),
                     at<unsigned char* const>(slot, planes_at));
  const int64_t size = sign_bytes(item.count);
  for (size_t j = counted; j < item.planes.size(); ++j)
    launch(queue, *fill, groups_for(size / 4 + 1), bytes(item.planes[j]), uint32_t{0}, size);
}

void feedback(sycl::queue& queue, Kernels& kernels, Uploads& uploads, const FeedbackItem& item) {
  if (item.count == 0) return;
  DeviceFeedback out{};
  out.values = {const_cast<void*>(item.values), nullptr, 0, static_cast<int32_t>(item.dtype)};
  out.first = item.first, out.count = item.count;
  out.value_scale = item.value_scale;
  out.sum = weight_sum(item.ballots, item.weights);
  out.voters = static_cast<int32_t>(item.ballots.size()), out.codec = item.codec;
  out.codes = item.codes, out.scales = item.scales;
  out.bits = bytes(item.bits), out.bit_scales = item.bit_scales;

  const sycl::kernel& kernel = kernels.feedback();
  const void* const tables = item.codes ? kernels.tables(item.codec) : nullptr;
  Arguments arguments;
  const size_t item_at = arguments.add(&out, sizeof out), ballots_at = arguments.add(item.ballots),
               scales_at = arguments.add(item.ballot_scales),
               weights_at = arguments.add_weights(item.ballots, item.weights);
  Uploads::Slot& slot = arguments.upload(queue, uploads);
  const int64_t blocks = (item.count + kSignAlignment - 1) / kSignAlignment;
  slot.used = launch(queue, kernel, groups_for(blocks * kernels::kFeedbackLanes),
                     at<const DeviceFeedback>(slot, item_at), at<Row>(slot, ballots_at),
                     at<const uint16_t* const>(slot, scales_at), at<const uint32_t>(slot, weights_at), tables);
}

}  // namespace lowtide::sycl_host
