#include "lowtide/sign_accumulator.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <vector>

#include "backend/signs.h"
#include "core/error.h"
#include "core/thread_pool.h"
#include "sign/sign_on.h"

namespace lowtide {
namespace {
constexpr int kMostPlanes = 16;
constexpr int kMost = (1 << kMostPlanes) - 1;
// Signs that are counted at a time: few enough for their new counts to stay in the cache.
constexpr int64_t kWindow = 1 << 20;
static_assert(kWindow % kSignAlignment == 0);
}  // namespace

struct SignAccumulator::Impl {
  Impl(int64_t of_count, int of_most, int of_threads)
      : count(of_count), most(of_most), planes(std::bit_width(static_cast<unsigned>(of_most))), threads(of_threads) {
    const int64_t window = std::min(kWindow, count);
    plane.assign(static_cast<size_t>(planes), std::vector<std::byte>(static_cast<size_t>(sign_bytes(count))));
    next.assign(static_cast<size_t>(planes), std::vector<std::byte>(static_cast<size_t>(sign_bytes(window))));
    signs.resize(static_cast<size_t>(sign_bytes(window)));
    carry.resize(signs.size());
  }

  // The weights 1, 2, 4 ... of the planes.
  std::vector<uint32_t> weights() const {
    std::vector<uint32_t> out;
    for (int j = 0; j < planes; ++j) out.push_back(uint32_t{1} << j);
    return out;
  }

  int64_t count;
  int most, planes, threads, added = 0;
  bool zero_is_plus = true;  // for the next addition. reset() leaves it: else an odd number would favor one sign
  std::vector<std::vector<std::byte>> plane;  // plane[j]: bit j of every counter
  // For one window: the counters after an addition, the signs to add, and the plane that the sum of weights calls for
  // but counts never reach.
  std::vector<std::vector<std::byte>> next;
  std::vector<std::byte> signs, carry;
};

SignAccumulator::SignAccumulator(int64_t count, int most, int threads) {
  LT_REQUIRE(count >= 0 && count <= kMostSigns, "got %lld values, wanted 0 to 2^60", ll(count));
  LT_REQUIRE(most >= 1 && most <= kMost, "got at most %d additions, wanted 1 to %d", most, kMost);
  LT_REQUIRE(threads >= 0, "got threads=%d, wanted 0 (one per core) or more", threads);
  impl_ = std::make_unique<Impl>(count, most, threads ? threads : available_threads());
}
SignAccumulator::~SignAccumulator() = default;
SignAccumulator::SignAccumulator(SignAccumulator&&) noexcept = default;
SignAccumulator& SignAccumulator::operator=(SignAccumulator&&) noexcept = default;

int64_t SignAccumulator::count() const { return impl_->count; }
int SignAccumulator::added() const { return impl_->added; }
int SignAccumulator::most() const { return impl_->most; }
int64_t SignAccumulator::bytes() const { return impl_->planes * sign_bytes(impl_->count); }

void SignAccumulator::reset() {
  impl_->added = 0;
  for (std::vector<std::byte>& plane : impl_->plane) std::fill(plane.begin(), plane.end(), std::byte{0});
}

bool SignAccumulator::add(const void* values, DType dtype) {
  Impl& self = *impl_;
  LT_REQUIRE(self.added < self.most, "got more than %d additions, wanted at most that many; call reset() to begin anew",
             self.most);
  LT_REQUIRE(values || self.count == 0, "got no values");
  uint32_t nonfinite = 0;
  std::vector<uint32_t> weights = self.weights();
  weights.push_back(1);
  for (int64_t first = 0; first < self.count; first += kWindow) {
    const int64_t here = std::min(kWindow, self.count - first);
    SignItem item;
    item.dtype = dtype, item.count = here;
    item.values = const_cast<std::byte*>(static_cast<const std::byte*>(values) + first * dtype_bytes(dtype));
    item.bits = self.signs.data();
    item.zero_is_plus = self.zero_is_plus;
    item.nonfinite = &nonfinite;
    sign::host_backend().pack_signs({&item, 1}, self.threads, nullptr);
    std::vector<const std::byte*> ballots;
    std::vector<std::byte*> planes;
    for (size_t j = 0; j < self.plane.size(); ++j) {
      ballots.push_back(self.plane[j].data() + first / 8);
      planes.push_back(self.next[j].data());
    }
    ballots.push_back(self.signs.data());
    planes.push_back(self.carry.data());
    CountItem sum;
    sum.count = here, sum.ballots = ballots, sum.weights = weights, sum.planes = planes;
    sign::host_backend().count_signs(sum, self.threads, nullptr);
    for (size_t j = 0; j < self.plane.size(); ++j)
      std::memcpy(self.plane[j].data() + first / 8, planes[j], static_cast<size_t>(sign_bytes(here)));
  }
  ++self.added;
  self.zero_is_plus = !self.zero_is_plus;
  return nonfinite == 0;
}

void SignAccumulator::majority(std::byte* bits, const std::string& ties, uint64_t seed, uint64_t step) const {
  const Impl& self = *impl_;
  LT_REQUIRE(ties == "hash" || ties == "plus" || ties == "minus", "got ties '%s', wanted 'hash', 'plus' or 'minus'",
             ties.c_str());
  LT_REQUIRE(bits || self.count == 0, "got no memory for the signs");
  // A counter c wins with 2 c > added, but the planes' weights add up to 2^P - 1 votes. One more voter, + everywhere
  // and with x = 2^P - 1 - added votes, moves the border there: 2 (c + x) > 2^P - 1 + x is the same as 2 c > added.
  std::vector<uint32_t> weights = self.weights();
  weights.push_back((uint32_t{1} << self.planes) - 1 - static_cast<uint32_t>(self.added));
  const std::vector<std::byte> all(self.signs.size(), std::byte{0xff});
  for (int64_t first = 0; first < self.count; first += kWindow) {
    std::vector<const std::byte*> ballots;
    for (const std::vector<std::byte>& plane : self.plane) ballots.push_back(plane.data() + first / 8);
    ballots.push_back(all.data());
    VoteItem item;
    item.count = std::min(kWindow, self.count - first), item.first_index = static_cast<uint64_t>(first);
    item.ballots = ballots, item.weights = weights;
    item.ties = ties == "hash" ? TieRule::kHash : ties == "plus" ? TieRule::kPlus : TieRule::kMinus;
    item.seed = seed, item.step = step;
    item.result = bits + first / 8;
    sign::host_backend().vote_signs(item, self.threads, nullptr);
  }
}

void SignAccumulator::mean(float* out) const {
  const Impl& self = *impl_;
  LT_REQUIRE(out || self.count == 0, "got no memory for the means");
  std::vector<float> of(static_cast<size_t>(self.most) + 1);
  for (int c = 0; c <= self.added; ++c)
    of[static_cast<size_t>(c)] =
        self.added ? static_cast<float>(2 * c - self.added) / static_cast<float>(self.added) : 0.f;
  for (int64_t i = 0; i < self.count; ++i) {
    size_t c = 0;
    for (size_t j = 0; j < self.plane.size(); ++j)
      c |= std::to_integer<size_t>(self.plane[j][static_cast<size_t>(i / 8)] >> (i % 8) & std::byte{1}) << j;
    out[i] = of[c];
  }
}

}  // namespace lowtide
