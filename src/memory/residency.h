// How much device memory state should have when nobody has said so: a pure policy that learns after each step what is
// free. All state begins on the host. The first two steps show what else the device has to hold; then as much state as
// fits is promoted, less a margin. When less than the margin is free, state is demoted until more is free again. It
// comes back only after a number of quiet steps, and with twice the margin free.
#pragma once

#include <cstdint>
#include <optional>

namespace lowtide {

class Residency {
 public:
  static constexpr int kFirstPromotion = 2;  // steps
  static constexpr int kQuietSteps = 20;

  struct Seen {
    int64_t free = -1, total = -1;  // bytes of device memory; -1: not known
    int64_t held = 0;               // bytes that state has there now, slots included
    int64_t wanted = 0;             // bytes that it would have if all of it fitted
  };

  // 5 % of the device or 1 GiB, whichever is more; but of a small device no more than an eighth.
  static int64_t margin(int64_t total);

  // After a step: the budget that state should have from now on, if that is not what it has.
  std::optional<int64_t> after_step(const Seen& seen);
  // Others have demoted state: count quiet steps from here.
  void disturbed() { quiet_ = 0; }

 private:
  int steps_ = 0, quiet_ = 0;
  int64_t least_ = INT64_MAX;  // of what was free or held, since the quiet began
};

}  // namespace lowtide
