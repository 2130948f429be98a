#include "lowtide/sign_accumulator.h"

#include <algorithm>
#include <memory>
#include <vector>

#include "backend/signs.h"
#include "core/error.h"
#include "core/thread_pool.h"
#include "sign/sign_counts.h"
#include "sign/sign_on.h"

namespace lowtide {
struct SignAccumulator::Impl {
  Impl(int64_t count, int most, int of_threads)
      : counts(sign::shared_host_backend(), count, most),
        room(sign::shared_host_backend(), count, most),
        threads(of_threads) {}

  sign::SignCounts counts;
  sign::CountRoom room;
  int threads;
};

SignAccumulator::SignAccumulator(int64_t count, int most, int threads) {
  LT_REQUIRE(threads >= 0, "got threads=%d, wanted 0 (one per core) or more", threads);
  impl_ = std::make_unique<Impl>(count, most, threads ? threads : available_threads());
}
SignAccumulator::~SignAccumulator() = default;
SignAccumulator::SignAccumulator(SignAccumulator&&) noexcept = default;
SignAccumulator& SignAccumulator::operator=(SignAccumulator&&) noexcept = default;

int64_t SignAccumulator::count() const { return impl_->counts.count(); }
int SignAccumulator::added() const { return impl_->counts.added(); }
int SignAccumulator::most() const { return impl_->counts.most(); }
int64_t SignAccumulator::bytes() const { return impl_->counts.bytes(); }

void SignAccumulator::reset() { impl_->counts.clear(nullptr); }

bool SignAccumulator::add(const void* values, DType dtype) {
  impl_->counts.add(values, dtype, impl_->room, impl_->threads, nullptr);
  return !impl_->room.take_nonfinite(nullptr);
}

void SignAccumulator::majority(std::byte* bits, const std::string& ties, uint64_t seed, uint64_t step) const {
  const sign::SignCounts& counts = impl_->counts;
  LT_REQUIRE(ties == "hash" || ties == "plus" || ties == "minus", "got ties '%s', wanted 'hash', 'plus' or 'minus'",
             ties.c_str());
  LT_REQUIRE(bits || counts.count() == 0, "got no memory for the signs");
  // A counter c wins if 2 c > added, but the planes' weights add up to 2^P - 1 votes. One more voter, + everywhere and
  // with x = 2^P - 1 - added votes, shifts the threshold: 2 (c + x) > 2^P - 1 + x is equivalent to 2 c > added.
  std::vector<uint32_t> weights = counts.plane_weights();
  weights.push_back((uint32_t{1} << counts.planes()) - 1 - static_cast<uint32_t>(counts.added()));
  const std::vector<std::byte> all(static_cast<size_t>(sign_bytes(std::min(sign::kCountWindow, counts.count()))),
                                   std::byte{0xff});
  for (int64_t first = 0; first < counts.count(); first += sign::kCountWindow) {
    std::vector<const std::byte*> ballots;
    for (int j = 0; j < counts.planes(); ++j) ballots.push_back(counts.plane(j) + first / 8);
    ballots.push_back(all.data());
    VoteItem item;
    item.count = std::min(sign::kCountWindow, counts.count() - first), item.first_index = static_cast<uint64_t>(first);
    item.ballots = ballots, item.weights = weights;
    item.ties = ties == "hash" ? TieRule::kHash : ties == "plus" ? TieRule::kPlus : TieRule::kMinus;
    item.seed = seed, item.step = step;
    item.result = bits + first / 8;
    sign::host_backend().vote_signs(item, impl_->threads, nullptr);
  }
}

void SignAccumulator::mean(float* out) const {
  sign::SignCounts& counts = impl_->counts;
  counts.read(out, impl_->threads, nullptr);
  const std::vector<float> means = sign::means_of(counts.added());
  for (int64_t i = 0; i < counts.count(); ++i) out[i] = means[static_cast<size_t>(out[i])];
}

}  // namespace lowtide
