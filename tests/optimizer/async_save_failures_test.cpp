// Claims about saves beside steps that fail or are cut off: the old or the new file is there, intact; wait() or the
// next save reports the failure; steps go on with the same bits; nothing is left behind. Killed: memory/kill_test.cpp.
#include <sys/wait.h>
#include <unistd.h>

#include "support/async_save_case.h"
#include "support/fault_trial.h"
#include "support/test.h"

namespace lowtide::testing {
namespace {

// The expected files after each number of steps, and the images.
struct Wanted {
  std::vector<std::string> files;
  std::vector<Image> images = reference_images();

  Wanted() {
    const TemporaryDirectory directory;
    Trial trial(system_env(), "");
    for (int step = 0; step <= kTrialSteps; ++step) {
      if (step == kLateStep + 1) trial.add_late();
      if (step > 0) trial.step(step - 1);
      trial.optimizer().save(directory.file("c"), std::to_string(step));
      files.push_back(read_file(directory.file("c")));
    }
  }
  static const Wanted& get() {
    static const Wanted wanted;
    return wanted;
  }
  // Returns the number of steps of the file's optimizer, or -1 if it matches none.
  int held(const std::string& path) const {
    const std::string found = read_file(path);
    for (size_t i = 0; i < files.size(); ++i)
      if (found == files[i]) return static_cast<int>(i);
    return -1;
  }
};

// Saves after one step, and beside steps after two; then steps once more.
void train(Trial& trial, const std::string& path, SaveHandle* save = nullptr) {
  trial.step(0);
  trial.optimizer().save(path, "1");
  trial.step(1);
  const SaveHandle made = trial.optimizer().save_async(path, "2", 8192);
  if (save) *save = made;
  trial.step(2);
}

TEST(AsyncSaveFailures, AnyFailedCallLeavesTheOldOrTheNew) {
  const Wanted& wanted = Wanted::get();
  constexpr std::pair<Call, int> kFaults[] = {{Call::kOpen, EMFILE},   {Call::kPwrite, ENOSPC},   {Call::kPwrite, EIO},
                                              {Call::kPread, EIO},     {Call::kAllocate, ENOSPC}, {Call::kSync, EIO},
                                              {Call::kRename, EACCES}, {Call::kMap, ENOMEM},      {Call::kPwrite, 0}};
  int64_t grid = 0, points = 0, heard = 0, by_wait = 0, lost = 0, wrong_file = 0, wrong_step = 0, left = 0, again = 0;
  for (const bool on_disk : {false, true})
    for (const auto& [call, error] : kFaults)
      for (int64_t n = 1;; ++n) {
        if (n > 1 && !in_share(grid++)) {
          if (n > 200) break;
          continue;
        }
        const TemporaryDirectory files, disk;
        const std::string path = files.file("c");
        FaultyEnv env;
        int64_t struck = 0;
        const int64_t descriptors = env.open_fds();
        {
          Trial trial(env, on_disk ? disk.path() : "");
          trial.step(0);
          trial.optimizer().save(path, "1");
          trial.step(1);
          const int64_t open = env.open_fds();
          env.arm({.call = call, .nth = n, .error = error, .short_ = error == 0});
          const SaveHandle save = trial.optimizer().save_async(path, "2", 8192);
          bool step_failed = false;
          try {
            trial.step(2);  // its own transfers may fail, too; faults_test.cpp covers them
          } catch (const Error&) {
            step_failed = true;
          } catch (const std::bad_alloc&) {
            step_failed = true;
          }
          std::string failure;
          const bool waits = points % 2;
          if (!waits)
            while (!save.done()) std::this_thread::yield();
          struck = env.struck();
          env.disarm();
          try {
            if (waits)
              save.wait();
            else
              trial.optimizer().save(files.file("next"), "3");
          } catch (const Error& thrown) {
            failure = thrown.what();
          }
          ++points;
          heard += !failure.empty();
          by_wait += waits && !failure.empty();
          const int held = wanted.held(path);
          wrong_file += held != 1 && held != 2;
          lost += failure.empty() && held != 2;  // neither written nor reported
          left += env.open_fds() != open && !on_disk;
          for (const std::string& name : files.names()) left += name != "c" && name != "next";
          if (!step_failed) {
            for (const uint32_t mask : matches(trial.image(), {&wanted.images[3]})) wrong_step += !mask;
            trial.optimizer().save(path, "3");
            again += wanted.held(path) == 3;
            trial.optimizer().save_async(path, "3").wait();
            again += wanted.held(path) == 3;
          } else {
            again += 2;
          }
        }
        left += env.open_fds() != descriptors;
        if (struck == 0) break;
      }
  EXPECT_EQ(wrong_file, 0);
  EXPECT_EQ(lost, 0);
  EXPECT_EQ(wrong_step, 0);
  EXPECT_EQ(left, 0);
  EXPECT_EQ(again, 2 * points);
  EXPECT_GT(by_wait, 0);
  EXPECT_GT(heard, by_wait);
  figure(
      "failed calls of saves beside steps: {} points, {} failures heard of ({} by wait(), the others by the next "
      "save), lost {}, files neither old nor new {}, steps with other bits {}, left behind {}, later saves wrong {}",
      points, heard, by_wait, lost, wrong_file, wrong_step, left, 2 * points - again);
}

TEST(AsyncSaveFailures, ExitAndForkAndDestruction) {
  const Wanted& wanted = Wanted::get();
  const TemporaryDirectory files, disk;
  const std::string path = files.file("c");
  SlowEnv env;
  env.microseconds = 20'000;
  // exit() with the optimizer alive finishes the file.
  pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    auto* const trial = new Trial(env, disk.path());
    auto* const save = new SaveHandle(nullptr);
    train(*trial, path, save);
    std::exit(save->done() ? 1 : 0);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  EXPECT_EQ(wanted.held(path), 2);

  // Destroying the optimizer finishes a running save, and the handle says so.
  std::filesystem::remove(path);
  SaveHandle save(nullptr);
  {
    Trial trial(env, "");
    train(trial, path, &save);
  }
  EXPECT_TRUE(save.done() && save.wait());
  EXPECT_EQ(wanted.held(path), 2);
  EXPECT_EQ(env.open_fds(), 0);

  // A forked child steps, saves and destroys its copy; the parent's save goes on.
  {
    Trial trial(env, "");
    train(trial, path, &save);
    child = ::fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      int failed = 0;
      try {
        save.wait();
        failed |= 1;
      } catch (const Error& error) {
        failed |= error.kind() == ErrorKind::kInvalidArgument ? 0 : 2;
      }
      {
        Trial mine(std::move(trial));
        mine.add_late();
        mine.step(3);
#if defined(__SANITIZE_THREAD__)  // it cannot follow threads that a forked child starts
        mine.optimizer().save(files.file("child"), "4");
#else
        mine.optimizer().save_async(files.file("child"), "4").wait();
#endif
      }
      failed |= wanted.held(files.file("child")) == 4 ? 0 : 4;
      ::_exit(failed);
    }
    EXPECT_TRUE(save.wait());
    EXPECT_EQ(wanted.held(path), 2);
    ::waitpid(child, &status, 0);
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << WEXITSTATUS(status);
  }
  figure("finished by exit(), by the destructor, and beside a forked child: 3 of 3 files whole");
}

TEST(AsyncSaveFailures, CallsMeanwhile) {
  const Wanted& wanted = Wanted::get();
  const TemporaryDirectory files;
  SlowEnv env;
  env.microseconds = 20'000;
  Trial trial(env, "");
  SaveHandle save(nullptr);
  train(trial, files.file("c"), &save);
  ASSERT_FALSE(save.done());
  EXPECT_FALSE(save.wait(0.001));
  expect_refusal([&] { trial.optimizer().load(files.file("c")); }, "wait()");
  // Saves wait for each other, in the order of the calls.
  trial.optimizer().save(files.file("d"), "3");
  EXPECT_TRUE(save.done());
  trial.optimizer().save_async(files.file("e"), "3");
  const SaveHandle last = trial.optimizer().save_async(files.file("f"), "3");
  EXPECT_EQ(wanted.held(files.file("e")), 3);
  EXPECT_TRUE(last.wait());
  EXPECT_EQ(wanted.held(files.file("c")), 2);
  EXPECT_EQ(wanted.held(files.file("d")), 3);
  EXPECT_EQ(wanted.held(files.file("f")), 3);
  refusal([&] { trial.optimizer().save_async("", "3"); });
  refusal([&] { trial.optimizer().save_async(files.file("g"), "3", -2); });
  // The next save throws a failure once, and wait() throws it every time.
  const SaveHandle nowhere = trial.optimizer().save_async(files.file("no/where"), "3");
  refusal([&] { trial.optimizer().save(files.file("c"), "3"); }, ErrorKind::kIo);
  EXPECT_EQ(wanted.held(files.file("c")), 2);
  refusal([&] { nowhere.wait(); }, ErrorKind::kIo);
  refusal([&] { nowhere.wait(); }, ErrorKind::kIo);
  trial.optimizer().load(files.file("c"));
  trial.step(2);
  trial.optimizer().save(files.file("c"), "3");
  EXPECT_EQ(wanted.held(files.file("c")), 3);
}

// One thread steps, writers write, and other threads poll and wait: the thread sanitizer must find no race.
TEST(AsyncSaveFailures, ThreadsThatWait) {
  const TemporaryDirectory files, disk;
  for (const bool on_disk : {false, true}) {
    Trial trial(system_env(), on_disk ? disk.path() : "");
    std::atomic<bool> over = false;
    std::mutex mutex;
    std::vector<SaveHandle> handles;
    std::atomic<int64_t> waited = 0;
    std::vector<std::thread> threads;
    for (int i = 0; i < 2; ++i)
      threads.emplace_back([&, i] {
        for (size_t next = 0;;) {
          std::optional<SaveHandle> save;
          {
            const std::lock_guard lock(mutex);
            if (next < handles.size()) save = handles[next++];
          }
          if (!save && over) return;
          if (!save)
            std::this_thread::yield();
          else if (i == 0)
            waited += save->wait();
          else
            while (!save->done()) std::this_thread::yield();
        }
      });
    const int saves = share_of(100);
    for (int i = 0; i < saves; ++i) {
      const SaveHandle save = trial.optimizer().save_async(files.file("c" + std::to_string(i % 3)), "", 4096 * (i % 5));
      {
        const std::lock_guard lock(mutex);
        handles.push_back(save);
      }
      for (int k = 0; k < 2; ++k) trial.step(k);
      trial.image();
    }
    handles.back().wait();
    over = true;
    for (std::thread& thread : threads) thread.join();
    EXPECT_EQ(waited, saves);
    figure("{}: {} saves, each waited for by two threads beside one that steps", on_disk ? "disk" : "RAM", saves);
  }
}

}  // namespace
}  // namespace lowtide::testing
