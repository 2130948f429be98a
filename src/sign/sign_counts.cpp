#include "sign/sign_counts.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <utility>

#include "core/error.h"
#include "core/layout.h"

namespace lowtide::sign {
namespace {

constexpr int kMost = (1 << 16) - 1;
constexpr int64_t kMarkBytes = 64;  // before the signs: the word that records non-finite values

int planes_of(int most) { return std::bit_width(static_cast<unsigned>(most)); }

int64_t window_bytes(int64_t count) {
  const int64_t bytes = sign_bytes(std::min(kCountWindow, count));
  return (bytes + kMarkBytes - 1) / kMarkBytes * kMarkBytes;
}

// Returns the number of planes. Throws if a count is impossible.
int checked_planes(int64_t count, int most) {
  LT_REQUIRE(count >= 0 && count <= kMostSigns, "got %lld values, wanted 0 to 2^60", ll(count));
  LT_REQUIRE(most >= 1 && most <= kMost, "got at most %d additions, wanted 1 to %d", most, kMost);
  return planes_of(most);
}

}  // namespace

CountRoom::CountRoom(std::shared_ptr<Backend> backend, int64_t count, int most)
    : window_(window_bytes(count)),
      planes_(checked_planes(count, most)),
      memory_(std::move(backend), kMarkBytes + (planes_ + 2) * window_) {}

bool CountRoom::take_nonfinite(void* stream) {
  memory_.fetch(0, kMarkBytes, stream);
  uint32_t found;
  std::memcpy(&found, memory_.host(), sizeof found);
  if (found) memory_.clear(0, kMarkBytes, stream);
  return found != 0;
}

SignCounts::SignCounts(std::shared_ptr<Backend> backend, int64_t count, int most)
    : backend_(backend),
      count_(count),
      most_(most),
      planes_(checked_planes(count, most)),
      plane_bytes_(sign_bytes(count)),
      memory_(std::move(backend), planes_ * plane_bytes_) {}

void SignCounts::clear(void* stream) {
  added_ = 0;
  memory_.clear(0, bytes(), stream);
}

void SignCounts::add(const void* values, DType dtype, CountRoom& room, int threads, void* stream) {
  LT_REQUIRE(added_ < most_, "got more than %d additions, wanted at most that many; call reset() to start over", most_);
  LT_REQUIRE(values || count_ == 0, "got no values");
  LT_REQUIRE(room.planes_ == planes_ && room.window_ >= window_bytes(count_), "got room for other counts");
  with_memory(memory_, stream, [&] {
    with_memory(room.memory_, stream, [&] {
      for (int64_t first = 0; first < count_; first += kCountWindow)
        add_window(values, dtype, first, std::min(kCountWindow, count_ - first), room, threads, stream);
    });
  });
  ++added_;
  zero_is_plus_ = !zero_is_plus_;
}

void SignCounts::add_window(const void* values, DType dtype, int64_t first, int64_t signs, CountRoom& room, int threads,
                            void* stream) {
  std::byte* const bits = room.memory_.there() + kMarkBytes;
  SignItem item;
  item.dtype = dtype, item.count = signs;
  item.values = const_cast<std::byte*>(static_cast<const std::byte*>(values) + first * dtype_bytes(dtype));
  item.bits = bits;
  item.zero_is_plus = zero_is_plus_;
  item.nonfinite = reinterpret_cast<uint32_t*>(room.memory_.there());
  backend_->pack_signs({&item, 1}, threads, stream);
  // The planes are ballots of weights 1, 2, 4 ..., and the signs are one more ballot. The sum of the weights requires a
  // last plane, which the counts never reach.
  std::vector<const std::byte*> ballots;
  std::vector<std::byte*> sums;
  for (int j = 0; j < planes_; ++j) ballots.push_back(plane(j) + first / 8);
  ballots.push_back(bits);
  std::vector<uint32_t> weights = plane_weights();
  weights.push_back(1);
  for (int j = 0; j <= planes_; ++j) sums.push_back(bits + (j + 1) * room.window_);
  CountItem sum;
  sum.count = signs, sum.ballots = ballots, sum.weights = weights, sum.planes = sums;
  backend_->count_signs(sum, threads, stream);
  Device* const device = backend_->device();
  for (int j = 0; j < planes_; ++j) {
    std::byte* const to = memory_.there() + j * plane_bytes_ + first / 8;
    if (device)
      device->copy(stream, to, sums[static_cast<size_t>(j)], sign_bytes(signs));
    else
      std::memcpy(to, sums[static_cast<size_t>(j)], static_cast<size_t>(sign_bytes(signs)));
  }
}

std::vector<uint32_t> SignCounts::plane_weights() const {
  std::vector<uint32_t> weights;
  for (int j = 0; j < planes_; ++j) weights.push_back(uint32_t{1} << j);
  return weights;
}

void SignCounts::read(float* out, int threads, void* stream) {
  LT_REQUIRE(out || count_ == 0, "got no memory for the counts");
  if (count_ == 0) return;
  // Half the sum of (sign 2^j) over the planes is the count minus half of the planes' capacity. Every partial sum is a
  // multiple of 1/2 below 2^17 and is therefore exact.
  const float half = 0.5f * static_cast<float>((1 << planes_) - 1);
  if (Device* const device = backend_->device())
    device->fill(stream, out, std::bit_cast<uint32_t>(half), 4, count_);
  else
    std::fill(out, out + count_, half);
  const Layout layout = Layout::make(std::span(&count_, 1), {});
  with_memory(memory_, stream, [&] {
    for (int j = 0; j < planes_; ++j) {
      ApplyItem item;
      item.param = out, item.layout = &layout;
      item.bits = plane(j);
      item.lr = -0.5f * static_cast<float>(1 << j);
      backend_->apply_signs({&item, 1}, threads, stream);
    }
  });
}

std::vector<float> means_of(int added) {
  std::vector<float> means(static_cast<size_t>(added) + 1);
  for (int c = 0; c <= added; ++c)
    means[static_cast<size_t>(c)] = added ? static_cast<float>(2 * c - added) / static_cast<float>(added) : 0.f;
  return means;
}

}  // namespace lowtide::sign
