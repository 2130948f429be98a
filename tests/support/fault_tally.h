// Judging an optimizer after a fault: blocks of before or after, what goes on from there, and the figures.
#pragma once

#include <gtest/gtest.h>

#include <cstdio>
#include <filesystem>
#include <functional>
#include <vector>

#include "support/fault_trial.h"

namespace lowtide::testing {

// Thousands of scratch files: in memory where the system has such a place.
inline const std::string kFast =
    std::filesystem::exists("/dev/shm") ? "/dev/shm" : std::filesystem::temp_directory_path().string();

struct Tally {
  int64_t points = 0, failed = 0, halfway = 0, kept = 0, refused = 0, blocks = 0, wrong = 0, unusable = 0,
          miscalled = 0, bytes = 0, fds = 0;

  void print(const char* what) const {
    std::printf(
        "%-28s points %5lld: failed %5lld (half way %lld, kept in RAM %lld, refused until repeated %lld); blocks "
        "checked "
        "%lld, wrong %lld; unusable %lld, wrong error %lld, bytes leaked %lld, descriptors leaked %lld\n",
        what, ll(points), ll(failed), ll(halfway), ll(kept), ll(refused), ll(blocks), ll(wrong), ll(unusable),
        ll(miscalled), ll(bytes), ll(fds));
    EXPECT_GT(points, 0);
    EXPECT_GT(failed, 0) << "control: some fault must show";
    EXPECT_EQ(wrong + unusable + miscalled + bytes + fds, 0);
  }
  static long long ll(int64_t n) { return n; }
};

inline bool throws(const std::function<void()>& act) {
  try {
    act();
  } catch (const std::exception& error) {
    std::printf("unusable: %s\n", error.what());
    return true;
  }
  return false;
}

inline std::function<void(Trial&)> steps_before(int end) {
  return [end](Trial& trial) {
    for (int number = 0; number < end; ++number) {
      if (number == kLateStep) trial.add_late();
      trial.step(number);
    }
  };
}

// The steps from `number` on, with parameters that move in between.
inline void finish(Trial& trial, int number, Tally& tally) {
  tally.unusable += throws([&] {
    for (; number < kTrialSteps; ++number) {
      if (number == kLateStep) trial.add_late();
      trial.move_params();
      trial.step(number);
    }
  });
  tally.unusable += trial.optimizer().report().kept_bytes != 0;
}

// Adds blocks whose bits are all 0.
inline void count(const std::vector<uint32_t>& masks, Tally& tally) {
  tally.blocks += static_cast<int64_t>(masks.size());
  for (const uint32_t mask : masks) tally.wrong += mask == 0;
}

// Step `number` failed, unless it is said to be complete; blocks have taken it or not, and go on accordingly.
inline void check_step(Trial& trial, int number, bool complete, const std::vector<Image>& all,
                       const std::vector<Image>& missed, Tally& tally) {
  const auto now = static_cast<size_t>(number + 1);
  if (static_cast<size_t>(trial.optimizer().param_count()) < kTrialParams.size()) trial.add_late();
  const std::vector<uint32_t> then = matches(trial.image(), {&all[now], &missed[now]});
  count(then, tally);
  int64_t after = 0, before = 0;
  for (const uint32_t mask : then) after += mask == 1, before += mask == 2;
  if (complete) tally.wrong += before;
  tally.halfway += after > 0 && before > 0;
  finish(trial, number + 1, tally);
  std::vector<uint32_t> end = matches(trial.image(), {&all.back(), &missed.back()});
  for (size_t block = 0; block < end.size(); ++block) end[block] &= then[block];
  count(end, tally);
}

// Until it is repeated, nothing goes on with state of which a part is of before.
inline void repeat_if_refused(Trial& trial, const std::function<void()>& repeat, Tally& tally) {
  bool refused = false;
  try {
    static_cast<void>(trial.image());
  } catch (const Error& error) {
    refused = error.kind() == ErrorKind::kInvalidArgument;
    tally.wrong += !refused;
  }
  if (!refused) return;
  ++tally.refused;
  const Tensor before = trial.param(0);
  EXPECT_NE(refusal([&] { trial.step(4); }).find("part old, part new"), std::string::npos);
  EXPECT_NE(refusal([&] { trial.optimizer().save("/nowhere/c"); }).find("part old, part new"), std::string::npos);
  EXPECT_TRUE(before.data == trial.param(0).data);
  tally.unusable += throws(repeat);
}

}  // namespace lowtide::testing
