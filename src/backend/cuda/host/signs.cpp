#include "backend/cuda/host/signs.h"

#include "backend/kernels/sign_items.h"

namespace lowtide::cuda_host {
namespace {

using kernels::Arguments;
using kernels::bytes;
using kernels::device_item;
using kernels::DeviceFeedback;
using kernels::DeviceVote;

using Row = const unsigned char* const;

Upload upload(const SignQueue& on, const Arguments& arguments) {
  return Upload(on.scope, on.uploads, on.events, on.queue.stream, arguments.all());
}

}  // namespace

void pack_signs(const SignQueue& on, const SignItem& item) {
  if (item.count) on.scope.check(cuda_kernels::pack_signs(item.dtype, device_item(item), on.queue));
}

void unpack_signs(const SignQueue& on, const SignItem& item) {
  if (item.count) on.scope.check(cuda_kernels::unpack_signs(item.dtype, device_item(item), on.queue));
}

void vote_signs(const SignQueue& on, const VoteItem& item) {
  if (item.count == 0) return;
  const DeviceVote vote = device_item(item);
  Arguments arguments;
  const size_t vote_at = arguments.add(&vote, sizeof vote), ballots_at = arguments.add(item.ballots),
               weights_at = arguments.add_weights(item.ballots, item.weights),
               presence_at = arguments.add(item.presence);
  const Upload there = upload(on, arguments);
  const auto* const on_device = there.at<const DeviceVote>(vote_at);
  const auto* const weights = there.at<const uint32_t>(weights_at);
  on.scope.check(cuda_kernels::vote_signs(on_device, there.at<Row>(ballots_at), weights, there.at<Row>(presence_at),
                                          item.count, on.queue));
  if (vote.result_presence)
    on.scope.check(cuda_kernels::vote_presence(on_device, weights, there.at<Row>(presence_at), item.count, on.queue));
}

void count_signs(const SignQueue& on, const CountItem& item) {
  if (item.count == 0) return;
  const DeviceVote vote = device_item(item);
  Arguments arguments;
  const size_t vote_at = arguments.add(&vote, sizeof vote), ballots_at = arguments.add(item.ballots),
               weights_at = arguments.add_weights(item.ballots, item.weights),
               planes_at = arguments.add(std::span<std::byte*const>(item.planes));
  const Upload there = upload(on, arguments);
  on.scope.check(cuda_kernels::count_signs(there.at<const DeviceVote>(vote_at), there.at<Row>(ballots_at),
                                           there.at<const uint32_t>(weights_at),
                                           there.at<unsigned char* const>(planes_at), item.count, on.queue));
  for (auto plane = static_cast<size_t>(vote.planes); plane < item.planes.size(); ++plane)
    on.scope.check(cuda_kernels::fill(bytes(item.planes[plane]), 0, sign_bytes(item.count), on.queue));
}

void feedback(const SignQueue& on, const FeedbackItem& item, const void* tables) {
  if (item.count == 0) return;
  const DeviceFeedback out = device_item(item);
  Arguments arguments;
  const size_t item_at = arguments.add(&out, sizeof out), ballots_at = arguments.add(item.ballots),
               scales_at = arguments.add(item.ballot_scales),
               weights_at = arguments.add_weights(item.ballots, item.weights);
  const Upload there = upload(on, arguments);
  on.scope.check(cuda_kernels::feedback(there.at<const DeviceFeedback>(item_at), there.at<Row>(ballots_at),
                                        there.at<const uint16_t* const>(scales_at),
                                        there.at<const uint32_t>(weights_at), tables, item.count, on.queue));
}

}  // namespace lowtide::cuda_host
