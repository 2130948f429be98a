#include "backend/sycl/host/signs.h"

#include <cstring>

#include "backend/kernels/sign_items.h"
#include "backend/sycl/host/kernels.h"

namespace lowtide::sycl_host {
namespace {

constexpr int64_t kPackedAtOnce = 32 * kernels::kSignWordsAtOnce;

using kernels::Arguments;
using kernels::bytes;
using kernels::device_item;

// Queues the arguments' copy to a buffer's device memory.
Uploads::Buffer& upload(sycl::queue& queue, Uploads& uploads, const Arguments& arguments) {
  const size_t size = arguments.all().size();
  Uploads::Buffer& buffer = uploads.acquire(size);
  std::memcpy(buffer.host.get(), arguments.all().data(), size);
  buffer.used = queue.memcpy(buffer.device.get(), buffer.host.get(), size);
  return buffer;
}

template <class T>
T* at(const Uploads::Buffer& buffer, size_t offset) {
  return bytes<T>(buffer.device.get() + offset);
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
  const bool presence = !item.presence.empty();
  const DeviceVote vote = device_item(item);

  const sycl::kernel& kernel = kernels.vote_signs();
  const sycl::kernel* const of_presence = presence ? &kernels.vote_presence() : nullptr;
  Arguments arguments;
  const size_t vote_at = arguments.add(&vote, sizeof vote), ballots_at = arguments.add(item.ballots),
               weights_at = arguments.add_weights(item.ballots, item.weights),
               presence_at = arguments.add(item.presence);
  Uploads::Buffer& buffer = upload(queue, uploads, arguments);
  const auto* const on_device = at<const DeviceVote>(buffer, vote_at);
  const auto* const weights = at<const uint32_t>(buffer, weights_at);
  buffer.used = launch(queue, kernel, groups_for_words(item.count), on_device, at<Row>(buffer, ballots_at), weights,
                       at<Row>(buffer, presence_at));
  if (of_presence)
    buffer.used = launch(queue, *of_presence, groups_for(presence_bytes(item.count)), on_device, weights,
                         at<Row>(buffer, presence_at));
}

void count_signs(sycl::queue& queue, Kernels& kernels, Uploads& uploads, const CountItem& item) {
  if (item.count == 0) return;
  const DeviceVote vote = device_item(item);
  const auto counted = static_cast<size_t>(vote.planes);
  const sycl::kernel& kernel = kernels.count_signs();
  const sycl::kernel* const fill = counted < item.planes.size() ? &kernels.fill() : nullptr;
  Arguments arguments;
  const size_t vote_at = arguments.add(&vote, sizeof vote), ballots_at = arguments.add(item.ballots),
               weights_at = arguments.add_weights(item.ballots, item.weights),
               planes_at = arguments.add(std::span<std::byte*const>(item.planes));
  Uploads::Buffer& buffer = upload(queue, uploads, arguments);
  buffer.used = launch(queue, kernel, groups_for_words(item.count), at<const DeviceVote>(buffer, vote_at),
                       at<Row>(buffer, ballots_at), at<const uint32_t>(buffer, weights_at),
                       at<unsigned char* const>(buffer, planes_at));
  const int64_t size = sign_bytes(item.count);
  for (size_t j = counted; j < item.planes.size(); ++j)
    launch(queue, *fill, groups_for(size / 4 + 1), bytes(item.planes[j]), uint32_t{0}, size);
}

void feedback(sycl::queue& queue, Kernels& kernels, Uploads& uploads, const FeedbackItem& item) {
  if (item.count == 0) return;
  const DeviceFeedback out = device_item(item);

  const sycl::kernel& kernel = kernels.feedback();
  const void* const tables = item.codes ? kernels.tables(item.codec) : nullptr;
  Arguments arguments;
  const size_t item_at = arguments.add(&out, sizeof out), ballots_at = arguments.add(item.ballots),
               scales_at = arguments.add(item.ballot_scales),
               weights_at = arguments.add_weights(item.ballots, item.weights);
  Uploads::Buffer& buffer = upload(queue, uploads, arguments);
  const int64_t blocks = (item.count + kSignAlignment - 1) / kSignAlignment;
  buffer.used = launch(queue, kernel, groups_for(blocks * kernels::kFeedbackLanes),
                       at<const DeviceFeedback>(buffer, item_at), at<Row>(buffer, ballots_at),
                       at<const uint16_t* const>(buffer, scales_at), at<const uint32_t>(buffer, weights_at), tables);
}

}  // namespace lowtide::sycl_host
