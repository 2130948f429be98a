// Chooses how much device memory state gets if no budget is given. This is a pure policy that learns after each step
// how much memory is free. State created by a step starts on the device as far as it fits beside a margin, because the
// device's other needs are known by then. State that existed before any step (loaded, for example) starts on the host,
// and two steps show how much of it fits. If less than the margin is free, state is demoted until more is free. State
// returns only after a number of quiet steps and if twice the margin is free.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>

namespace lowtide {

class Residency {
 public:
  static constexpr int kFirstPromotion = 2;  // steps
  static constexpr int kQuietSteps = 20;

  struct Seen {
    int64_t free = -1, total = -1;  // bytes of device memory; -1 if unknown
    int64_t held = 0;               // bytes of state on the device now, including slots
    int64_t wanted = 0;             // bytes of state on the device if all state fitted
  };

  // Returns 5 % of the device or 1 GiB, whichever is more, but at most an eighth of a small device.
  static int64_t margin(int64_t total) {
    constexpr int64_t kGiB = int64_t{1} << 30;
    return total < 0 ? kGiB : std::max(total / 20, std::min(kGiB, total / 8));
  }

  // Returns the budget for state that has `room`. It leaves 5/4 of the margin free, which is between the bounds at
  // which state moves again.
  static int64_t budget(int64_t room, int64_t total) { return std::max<int64_t>(room - margin(total) / 4 * 5, 0); }

  // Returns the budget for all state when a step creates new state; it takes no room from existing state.
  static std::optional<int64_t> before_new_state(const Seen& seen) {
    if (seen.free < 0) return std::nullopt;
    return std::max(seen.held, budget(seen.free + seen.held, seen.total));
  }

  // Call this after a step. Returns the new budget for state if it changes. `counts` is false for a further part of the
  // same step (a bucket of other parameters); then only pressure moves state.
  std::optional<int64_t> after_step(const Seen& seen, bool counts = true) {
    if (seen.free < 0) return std::nullopt;
    if (counts) steps_ = std::min(steps_ + 1, kFirstPromotion + 1);
    const int64_t margin = Residency::margin(seen.total), room = seen.free + seen.held;
    if (seen.free < margin) {
      disturbed();
      return seen.held > 0 ? std::optional(budget(room, seen.total)) : std::nullopt;
    }
    least_ = std::min(least_, room);
    if (!counts) return std::nullopt;
    ++quiet_;
    const bool first = steps_ == kFirstPromotion;
    if (!first && (quiet_ < kQuietSteps || seen.free < 2 * margin)) return std::nullopt;
    const int64_t most = std::min(budget(least_, seen.total), seen.wanted);
    disturbed();
    return most > seen.held ? std::optional(most) : std::nullopt;
  }
  // Call this after another part of the program has demoted state; quiet steps are counted from here.
  void disturbed() {
    quiet_ = 0;
    least_ = INT64_MAX;
  }

 private:
  int steps_ = 0, quiet_ = 0;
  int64_t least_ = INT64_MAX;  // the lowest number of free or held bytes since the quiet steps began
};

}  // namespace lowtide
