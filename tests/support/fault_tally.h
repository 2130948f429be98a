// Judges an optimizer after a fault: each block must be as before or as after the step, and the run must go on.
#pragma once

#include "support/fault_trial.h"
#include "support/test.h"

namespace lowtide::testing {

// The folder for thousands of scratch files: in memory if the system has such a folder.
inline const std::string kFast =
    std::filesystem::exists("/dev/shm") ? "/dev/shm" : std::filesystem::temp_directory_path().string();

struct Tally {
  int64_t points = 0, failed = 0, halfway = 0, kept = 0, refused = 0, blocks = 0, wrong = 0, unusable = 0,
          miscalled = 0, bytes = 0, fds = 0;

  void print(const char* what) const {
    figure(
        "{} points {}: failed {} (half way {}, kept in RAM {}, refused until repeated {}); blocks checked {}, wrong "
        "{}; unusable {}, wrong error {}, bytes leaked {}, descriptors leaked {}",
        what, points, failed, halfway, kept, refused, blocks, wrong, unusable, miscalled, bytes, fds);
    EXPECT_GT(points, 0);
    EXPECT_GT(failed, 0) << "control: some fault must show";
    EXPECT_EQ(wrong + unusable + miscalled + bytes + fds, 0);
  }
};

inline bool throws(const std::function<void()>& act) {
  try {
    act();
  } catch (const std::exception& error) {
    figure("unusable: {}", error.what());
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

// Takes the steps from `number` on; parameters move in between.
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

// Counts the blocks, and as wrong those that match no candidate (mask 0).
inline void count(const std::vector<uint32_t>& masks, Tally& tally) {
  tally.blocks += static_cast<int64_t>(masks.size());
  for (const uint32_t mask : masks) tally.wrong += mask == 0;
}

// Checks step `number`, which failed unless `complete`: each block took the step or did not, and goes on from there.
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

// If the optimizer refuses partly old state, it must also refuse steps and saves until the call is repeated.
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
  expect_refusal([&] { trial.step(4); }, "part old, part new");
  expect_refusal([&] { trial.optimizer().save("/nowhere/c"); }, "part old, part new");
  EXPECT_TRUE(before.data == trial.param(0).data);
  tally.unusable += throws(repeat);
}

}  // namespace lowtide::testing
