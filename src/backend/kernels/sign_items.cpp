#include "backend/kernels/sign_items.h"

#include <algorithm>
#include <bit>
#include <cstring>

namespace lowtide::kernels {
namespace {
constexpr size_t kAligned = 8;
static_assert(kSignBlock == 32 * kWordsOfBlock);
}  // namespace

DeviceSignItem device_item(const SignItem& item) {
  return {item.values,    bytes(item.bits), bytes(item.presence), bytes(item.zeros), item.scales,
          item.nonfinite, item.first,       item.count,           item.zero_is_plus, item.big};
}

DeviceVote device_item(const VoteItem& item) {
  DeviceVote vote{};
  vote.count = item.count;
  vote.first_index = item.first_index, vote.seed = item.seed, vote.step = item.step;
  vote.previous = bytes(item.previous), vote.result = bytes(item.result), vote.zeros = bytes(item.zeros);
  vote.result_presence = item.presence.empty() ? nullptr : bytes(item.result_presence);
  vote.sum = weight_sum(item), vote.planes = std::bit_width(vote.sum);
  vote.voters = static_cast<int32_t>(item.ballots.size()), vote.ties = static_cast<int32_t>(item.ties);
  vote.big = item.big;
  return vote;
}

DeviceVote device_item(const CountItem& item) {
  DeviceVote vote{};
  vote.count = item.count;
  vote.planes = static_cast<int32_t>(std::min(item.planes.size(), kMostPlanes));
  vote.voters = static_cast<int32_t>(item.ballots.size());
  return vote;
}

DeviceFeedback device_item(const FeedbackItem& item) {
  DeviceFeedback out{};
  out.values = {const_cast<void*>(item.values), nullptr, 0, static_cast<int32_t>(item.dtype)};
  out.first = item.first, out.count = item.count;
  out.value_scale = item.value_scale;
  out.sum = weight_sum(item.ballots, item.weights);
  out.voters = static_cast<int32_t>(item.ballots.size()), out.codec = item.codec;
  out.codes = item.codes, out.scales = item.scales;
  out.bits = bytes(item.bits), out.bit_scales = item.bit_scales;
  return out;
}

size_t Arguments::add(const void* data, size_t size) {
  const size_t at = (bytes_.size() + kAligned - 1) / kAligned * kAligned;
  bytes_.resize(at + size);
  if (size) std::memcpy(bytes_.data() + at, data, size);
  return at;
}

size_t Arguments::add_weights(std::span<const std::byte* const> ballots, std::span<const uint32_t> weights) {
  const std::vector<uint32_t> ones(weights.empty() ? ballots.size() : 0, 1);
  return add(weights.empty() ? std::span<const uint32_t>(ones) : weights);
}

}  // namespace lowtide::kernels
