// Claim: a process that is killed anywhere in its steps and saves, also those beside steps, leaves an intact checkpoint
// of a completed save, no scratch file, and a directory that the next process can use at once. The next save removes
// leftovers.
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "support/fault_trial.h"
#include "support/faulty_env.h"
#include "support/test.h"

namespace lowtide::testing {
namespace {

// Judges the file at the path: returns the number of steps of the saved optimizer, 0 if there is no file, or -1 if the
// file is not that optimizer bit for bit.
class Judge {
 public:
  Judge() { late_.add_late(); }

  int held(const std::string& path) {
    if (!std::filesystem::exists(path)) return 0;
    int steps = -1;
    try {
      steps = std::stoi(checkpoint_metadata(path));
      Trial& reader = steps > kLateStep ? late_ : early_;
      reader.optimizer().load(path);
      for (const uint32_t mask : matches(reader.image(), {&images_.at(static_cast<size_t>(steps))}, false))
        if (!mask) return -1;
      return steps;
    } catch (const std::exception& error) {
      figure("lost: {}", error.what());
      return -1;
    }
  }

  // Saves the optimizer that held() found, again.
  void save(const std::string& path, int steps, bool beside = false) {
    Optimizer& optimizer = (steps > kLateStep ? late_ : early_).optimizer();
    if (beside)
      optimizer.save_async(path, std::to_string(steps)).wait();
    else
      optimizer.save(path, std::to_string(steps));
  }

  // Returns true if another process can use the directory, and gets the right bits.
  bool usable(const std::string& disk) const {
    try {
      Trial trial(system_env(), disk);
      trial.step(0);
      for (const uint32_t mask : matches(trial.image(), {&images_[1]}))
        if (!mask) return false;
      return trial.optimizer().report().disk_bytes > 0;
    } catch (const std::exception& error) {
      figure("unusable: {}", error.what());
      return false;
    }
  }

 private:
  std::vector<Image> images_ = reference_images();
  Trial early_{system_env(), ""}, late_{system_env(), ""};
};

// Steps and saves up to `end` steps; each save is named by its number of steps. beside: all but the first save write
// beside the next step.
void train(Env& env, const std::string& disk, const std::string& path, int end, bool beside = false) {
  Trial trial(env, disk);
  for (int number = 0; number < end; ++number) {
    if (number == kLateStep) trial.add_late();
    trial.step(number);
    if (beside && number > 0)
      trial.optimizer().save_async(path, std::to_string(number + 1), 8192);
    else
      trial.optimizer().save(path, std::to_string(number + 1));
  }
  if (beside) trial.step(end);
}

int temporary_files(const TemporaryDirectory& files, int* others) {
  int temporary = 0;
  for (const std::string& name : files.names()) {
    if (name.starts_with("c.tmp-"))
      ++temporary;
    else if (name != "c")
      ++*others;
  }
  return temporary;
}

bool was_killed(pid_t child) {
  int status = 0;
  return ::waitpid(child, &status, 0) == child && WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL;
}

TEST(Killed, AtEveryCallThatWrites) {
  const TemporaryDirectory disk, files;
  const std::string path = files.file("c");
  Judge judge;
  constexpr int kEnd = 2;
  constexpr Call kCalls[] = {Call::kOpen, Call::kPwrite, Call::kAllocate, Call::kTruncate,
                             Call::kSync, Call::kRename, Call::kUnlink,   Call::kLock};
  int64_t grid = 0;
  for (const bool beside : {false, true}) {
    FaultyEnv counting;
    counting.arm({});
    train(counting, disk.path(), path, kEnd, beside);
    ASSERT_EQ(judge.held(path), kEnd);
    int64_t points = 0, killed = 0, none = 0, wrong = 0, left = 0, leftovers = 0, kept = 0, unusable = 0;
    int held[kEnd + 1] = {}, others = 0;
    for (const Call call : kCalls)
      for (int64_t n = 1; n <= counting.calls(call); ++n)
        for (const bool before : {true, false}) {
          // Every share includes the first and last call of each kind.
          if (n > 1 && n < counting.calls(call) && !in_share(grid++)) continue;
          std::filesystem::remove_all(files.path());
          std::filesystem::create_directory(files.path());
          const pid_t child = ::fork();
          ASSERT_GE(child, 0);
          if (child == 0) {
            FaultyEnv env;
            Fault fault{.call = call, .nth = n};
            (before ? fault.before : fault.after) = [] { ::kill(::getpid(), SIGKILL); };
            env.arm(fault);
            train(env, disk.path(), path, kEnd, beside);
            ::_exit(0);
          }
          ++points;
          killed += was_killed(child);
          const int steps = judge.held(path);
          wrong += steps < 0;
          if (steps >= 0) ++held[steps];
          none += steps == 0;
          left += static_cast<int64_t>(disk.names().size());
          leftovers += temporary_files(files, &others);
          unusable += !judge.usable(disk.path());
          judge.save(path, steps, beside);
          kept += temporary_files(files, &others);
        }
    EXPECT_EQ(killed, points);
    EXPECT_EQ(wrong + left + unusable + others + kept, 0);
    EXPECT_GT(leftovers, 0) << "control";
    EXPECT_GT(none, 0);
    EXPECT_GT(held[1], 0);
    EXPECT_GT(held[2], 0);
    figure(
        "{}: killed at {}/{} points: no save had completed {}, first {}, second {}, wrong {}; scratch files left {}, "
        "directories that could not be used at once {}; files c.tmp-* left {}, after one more save {}, others {}",
        beside ? "beside a step" : "between steps", killed, points, none, held[1], held[2], wrong, left, unusable,
        leftovers, kept, others);
  }
}

// Uses the system's default engine, and kills the process whatever it is doing.
TEST(Killed, AtAnyTime) {
  const TemporaryDirectory disk, files;
  const std::string path = files.file("c");
  Judge judge;
  Rng rng = seeded("kill -9", 61);
  // A kill hits a save only by chance; fewer than 20 might all miss.
  const int kills = std::max(20, share_of(60));
  int killed = 0, wrong = 0, left = 0, unusable = 0, others = 0, saves = 0, kept = 0;
  int held[kTrialSteps + 1] = {};
  int64_t latest_us = 80'000;
  for (int i = 0; i < kills; ++i) {
    const auto start = std::chrono::steady_clock::now();
    const pid_t child = ::fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      for (;;) train(system_env(), disk.path(), path, kTrialSteps);
    }
    if (i == 0) {  // runs until there is a checkpoint; later runs have time for several, on slow machines, too
      while (!std::filesystem::exists(path)) ::usleep(1000);
      const std::chrono::duration<double, std::micro> first = std::chrono::steady_clock::now() - start;
      latest_us = std::max(latest_us, static_cast<int64_t>(4 * first.count()));
    }
    std::this_thread::sleep_for(std::chrono::microseconds(rng.below(latest_us)));
    ::kill(child, SIGKILL);
    killed += was_killed(child);
    const int steps = judge.held(path);
    wrong += steps <= 0;
    if (steps > 0) ++held[steps];
    left += static_cast<int>(disk.names().size());
    unusable += !judge.usable(disk.path());
    const int temporary = temporary_files(files, &others);
    saves += temporary > 0;
    judge.save(path, steps);
    kept += temporary_files(files, &others);
  }
  EXPECT_EQ(killed, kills);
  EXPECT_EQ(wrong + left + unusable + others + kept, 0);
  EXPECT_GT(saves, 0) << "control: some kill must have hit a save";
  EXPECT_LT(saves, kills) << "control: and some must not have";
  std::printf(
      "killed %d/%d times (%d in a save): wrong %d; scratch files left %d, directories not usable at once %d, c.tmp-* "
      "after one more save %d; checkpoints of step",
      killed, kills, saves, wrong, left, unusable, kept);
  for (int steps = 1; steps <= kTrialSteps; ++steps) std::printf(" %d: %d", steps, held[steps]);
  figure("");
}

}  // namespace
}  // namespace lowtide::testing
