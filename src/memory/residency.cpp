#include "memory/residency.h"

#include <algorithm>

namespace lowtide {

int64_t Residency::margin(int64_t total) {
  constexpr int64_t kGiB = int64_t{1} << 30;
  return total < 0 ? kGiB : std::max(total / 20, std::min(kGiB, total / 8));
}

// State moves until 5/4 of the margin are free, between the bounds at which it moves again.
std::optional<int64_t> Residency::after_step(const Seen& seen) {
  if (seen.free < 0) return std::nullopt;
  steps_ = std::min(steps_ + 1, kFirstPromotion + 1);
  const int64_t margin = Residency::margin(seen.total), room = seen.free + seen.held;
  const auto budget = [&](int64_t of) { return std::max<int64_t>(of - margin / 4 * 5, 0); };
  if (seen.free < margin) {
    quiet_ = 0;
    least_ = INT64_MAX;
    return seen.held > 0 ? std::optional(budget(room)) : std::nullopt;
  }
  least_ = quiet_ == 0 ? room : std::min(least_, room);
  ++quiet_;
  const bool first = steps_ == kFirstPromotion;
  if (!first && (quiet_ < kQuietSteps || seen.free < 2 * margin)) return std::nullopt;
  const int64_t most = std::min(budget(least_), seen.wanted);
  quiet_ = 0;
  return most > seen.held ? std::optional(most) : std::nullopt;
}

}  // namespace lowtide
