// Claim: nothing is lost. Every class of system call that an optimizer makes fails at its n-th call, once and from then
// on, in every operation. Afterwards each block of a parameter and its state are both old or both new, and training
// goes on and ends with the bits of an undisturbed run that took the same steps for each block.
#include "optim/carried.h"
#include "support/fault_tally.h"
#include "support/faulty_env.h"
#include "support/test.h"

namespace lowtide::testing {
namespace {

constexpr Call kCalls[] = {Call::kOpen, Call::kPread,  Call::kPwrite, Call::kAllocate, Call::kTruncate,
                           Call::kSync, Call::kRename, Call::kLock,   Call::kMap};

std::vector<Fault> faults_of(Call call) {
  std::vector<Fault> faults;
  for (const bool persistent : {false, true}) {
    if (call == Call::kMap) {
      faults.push_back({.call = call, .persistent = persistent, .error = ENOMEM});
      continue;
    }
    for (const int error : {EIO, ENOSPC, EINTR})
      faults.push_back({.call = call, .persistent = persistent, .error = error});
    if (call == Call::kPread || call == Call::kPwrite)
      faults.push_back({.call = call, .persistent = persistent, .short_ = true});
  }
  return faults;
}

// One trial: `prepare` without a fault, `act` under the fault, then `check` with the Error, if any.
struct Operation {
  std::function<void(Trial&)> prepare, act;
  std::function<void(Trial&, const std::optional<Error>&)> check;
};

void try_everything(const TemporaryDirectory& directory, const Operation& operation, Tally& tally) {
  for (const Call call : kCalls)
    for (const Fault& kind : faults_of(call)) {
      // Endless retries take time; ScratchFile's tests cover them at every call.
      const bool endless = kind.persistent && (kind.error == EINTR || kind.short_);
      // Single faults strike every call, persistent ones the first calls, then every third. Shares leave out later
      // calls.
      for (int64_t n = 1; n <= (endless ? 1 : 1 << 20); n += n > 8 ? (kind.persistent ? 3 : 1) * spread() : 1) {
        const int64_t descriptors = open_descriptors();
        FaultyEnv env;
        bool struck;
        {
          Trial trial(env, directory.path());
          operation.prepare(trial);
          Fault fault = kind;
          fault.nth = n;
          env.arm(fault);
          std::optional<Error> error;
          try {
            operation.act(trial);
          } catch (const Error& thrown) {
            error = thrown;
          }
          struck = env.struck() > 0;
          env.disarm();
          if (struck) {
            ++tally.points;
            tally.failed += error.has_value();
            tally.kept += trial.optimizer().report().kept_bytes > 0;
            if (error) {
              const bool memory = call == Call::kMap, resumed = kind.short_;
              tally.miscalled += error->kind() != (memory ? ErrorKind::kOutOfMemory : ErrorKind::kIo) ||
                                 (!memory && !resumed && error->os_error() != kind.error);
            }
            operation.check(trial, error);
          } else {
            EXPECT_EQ(error, std::nullopt) << error->what();
          }
        }
        tally.bytes += env.mapped_bytes();
        tally.fds += env.open_fds() + open_descriptors() - descriptors;
        if (!struck) break;
      }
    }
}

// Returns true without an error, or with one that says so.
bool is_complete(const std::optional<Error>& error) {
  return !error || std::string(error->what()).find("The step is complete") != std::string::npos;
}

TEST(Faults, InAStep) {
  const TemporaryDirectory directory(kFast);
  const std::vector<Image> all = reference_images();
  for (const int number : {0, 2}) {
    const std::vector<Image> missed = reference_images(number);
    Tally tally;
    try_everything(directory,
                   {steps_before(number), [&](Trial& trial) { trial.step(number); },
                    [&](Trial& trial, const std::optional<Error>& error) {
                      check_step(trial, number, is_complete(error), all, missed, tally);
                    }},
                   tally);
    tally.print(number ? "a later step" : "the first step");
    EXPECT_GT(tally.halfway, 0) << "control";
    EXPECT_GT(tally.kept, 0) << "control";
  }
}

TEST(Faults, WhereAGroupIsAdded) {
  const TemporaryDirectory directory(kFast);
  const std::vector<Image> all = reference_images(), missed = reference_images(kLateStep);
  Tally tally;
  try_everything(directory,
                 {steps_before(kLateStep),
                  [&](Trial& trial) {
                    trial.add_late();
                    trial.step(kLateStep);
                  },
                  [&](Trial& trial, const std::optional<Error>& error) {
                    check_step(trial, kLateStep, is_complete(error), all, missed, tally);
                  }},
                 tally);
  tally.print("adding a group, and a step");
}

// Prodigy reads all state for its sums before it steps, and all parameters share what these give. A step that a disk
// stops before it changed a block can be taken again; else the estimate is the step's own, also of blocks that missed
// it, and a run that loads a save and the run here stay equal.
TEST(Faults, InAStepThatNeedsSums) {
  const TemporaryDirectory directory(kFast), files(kFast);
  const std::vector<Image> all = reference_images(-1, "prodigy");
  int64_t again = 0, halfway = 0, complete = 0, wrong = 0;
  for (const Call call : {Call::kPread, Call::kPwrite})
    for (const int number : {0, 2})
      for (int64_t nth = 1;; nth += nth > 8 ? 3 * spread() : 1) {
        FaultyEnv env;
        Trial trial(env, directory.path(), "prodigy"), twin(system_env(), "", "prodigy");
        for (Trial* const each : {&trial, &twin}) {
          each->add_late();
          for (int step = 0; step < number; ++step) each->step(step);
        }
        const Carried before = carried_of(twin.optimizer(), 0);
        twin.step(number);
        const Carried after = carried_of(twin.optimizer(), 0);
        ASSERT_NE(before, after);
        env.arm({.call = call, .nth = nth, .persistent = true, .error = EIO});
        std::optional<Error> error;
        try {
          trial.step(number);
        } catch (const Error& thrown) {
          error = thrown;
        }
        const bool struck = env.struck() > 0;
        env.disarm();
        if (error) EXPECT_EQ(error->kind(), ErrorKind::kIo) << error->what();
        int64_t news = 0, olds = 0;
        for (const uint32_t mask : matches(trial.image(), {&all[size_t(number) + 1], &all[size_t(number)]}))
          news += mask == 1, olds += mask == 2, wrong += mask == 0;
        for (int64_t i = 0; i < trial.optimizer().param_count(); ++i)
          EXPECT_EQ(carried_of(trial.optimizer(), i), news ? after : before) << "fault " << nth << ", parameter " << i;
        EXPECT_TRUE(olds == 0 || !is_complete(error));
        if (news == 0) {
          trial.step(number);
          ++again;
        } else if (olds > 0) {
          trial.optimizer().save(files.file("c"));
          twin.optimizer().load(files.file("c"));
          for (size_t i = 0; i < kTrialParams.size(); ++i) twin.param(i).data = trial.param(i).data;
          ++halfway;
        } else {
          ++complete;
        }
        Tally tally;
        finish(trial, number + 1, tally);
        finish(twin, number + 1, tally);
        EXPECT_EQ(tally.unusable, 0);
        const Image wanted = twin.image();
        for (const uint32_t mask : matches(trial.image(), {&wanted})) wrong += mask == 0;
        if (!struck) break;
      }
  EXPECT_EQ(wrong, 0);
  EXPECT_GT(again, 0) << "control: a fault before the first change";
  EXPECT_GT(halfway, 0) << "control";
  figure("taken again {}, half way {}, complete {}; blocks wrong {}", again, halfway, complete, wrong);
}

// A checkpoint has one count of steps for each parameter: a run that loads it and the run here stay equal.
TEST(Faults, AStepStoppedHalfWayCanBeSaved) {
  const TemporaryDirectory directory(kFast), files(kFast);
  int saved = 0, halfway = 0;
  int64_t differing = 0;
  for (const char* rule : {"adamw", "lion", "sgd"})
    for (const int number : {0, 2})
      for (int64_t nth = 1; nth <= 6; ++nth) {
        FaultyEnv env;
        Trial trial(env, directory.path(), rule), other(system_env(), "", rule);
        steps_before(number)(trial);
        env.arm({.call = Call::kPread, .nth = nth, .persistent = true, .error = EIO});  // a single one is retried
        try {
          trial.step(number);
        } catch (const Error&) {
          ++halfway;
        }
        env.disarm();
        trial.optimizer().save(files.file("c"));
        other.optimizer().load(files.file("c"));
        ++saved;
        for (size_t i = 0; i < kTrialParams.size(); ++i) other.param(i).data = trial.param(i).data;
        Tally tally;
        finish(trial, number + 1, tally);
        finish(other, number + 1, tally);
        EXPECT_EQ(tally.unusable, 0);
        const Image wanted = trial.image();
        for (const uint32_t mask : matches(other.image(), {&wanted})) differing += mask == 0;
      }
  EXPECT_GT(halfway, 3) << "control: how many reads were made ahead, before the disk died, is a matter of time";
  EXPECT_EQ(differing, 0);
  figure("saved after a step: {} ({} of them stopped half way); blocks that differ where both went on {}", saved,
         halfway, differing);
}

TEST(Faults, WhileStateIsRead) {
  const TemporaryDirectory directory(kFast);
  const std::vector<Image> all = reference_images();
  Tally tally;
  try_everything(directory,
                 {steps_before(4), [](Trial& trial) { static_cast<void>(trial.image()); },
                  [&](Trial& trial, const std::optional<Error>&) {
                    count(matches(trial.image(), {&all[4]}), tally);
                    finish(trial, 4, tally);
                    count(matches(trial.image(), {&all.back()}), tally);
                  }},
                 tally);
  tally.print("read_state");
}

TEST(Faults, InSave) {
  const TemporaryDirectory directory(kFast), files(kFast);
  const std::vector<Image> all = reference_images();
  const std::string path = files.file("c");
  Trial older(system_env(), ""), reader(system_env(), "");
  older.add_late();
  reader.add_late();
  older.step(0);
  Tally tally;
  int64_t olds = 0, news = 0;
  const Operation operation{[&](Trial& trial) {
                              steps_before(4)(trial);
                              older.optimizer().save(path, "old");
                            },
                            [&](Trial& trial) { trial.optimizer().save(path, "new"); },
                            [&](Trial& trial, const std::optional<Error>& error) {
                              const bool is_old = reader.optimizer().load(path) == "old";
                              (is_old ? olds : news)++;
                              tally.wrong += is_old && !error;
                              count(matches(reader.image(), {&all[is_old ? 1 : 4]}, false), tally);
                              tally.wrong += files.names().size() != 1;
                              count(matches(trial.image(), {&all[4]}), tally);
                              finish(trial, 4, tally);
                              count(matches(trial.image(), {&all.back()}), tally);
                            }};
  try_everything(directory, operation, tally);
  tally.print("save");
  EXPECT_GT(olds, 0);
  EXPECT_GT(news, 0);
  figure("old {}, new {}", olds, news);
}

TEST(Faults, InLoad) {
  const TemporaryDirectory directory(kFast), files(kFast);
  const std::vector<Image> all = reference_images();
  const std::string path = files.file("c");
  Trial saved(system_env(), "");
  saved.add_late();
  for (int number = 0; number < 4; ++number) saved.step(number);
  saved.optimizer().save(path);
  saved.step(4);
  const std::vector<Image> other = reference_images(0);  // the optimizer before the load, which has missed step 0
  Tally tally;
  int64_t olds = 0, news = 0;
  const auto load = [&](Trial& trial) { trial.optimizer().load(path); };
  const Operation operation{[&](Trial& trial) {
                              trial.add_late();
                              for (int number = 1; number < 4; ++number) trial.step(number);
                            },
                            load,
                            [&](Trial& trial, const std::optional<Error>& error) {
                              const bool half = error.has_value();
                              repeat_if_refused(
                                  trial, [&] { load(trial); }, tally);
                              const std::vector<uint32_t> masks = matches(trial.image(), {&all[4], &other[4]}, false);
                              count(masks, tally);
                              uint32_t common = ~uint32_t{0};
                              for (const uint32_t mask : masks) common &= mask;
                              tally.wrong += common == 0;  // all loaded, or all old
                              tally.wrong += !half && !(common & 1);
                              (common & 1 ? news : olds)++;
                              if (!(common & 1)) load(trial);
                              for (size_t i = 0; i < kTrialParams.size(); ++i)
                                trial.param(i).data = all[4].params[i].data;
                              finish(trial, 4, tally);
                              count(matches(trial.image(), {&all.back()}), tally);
                            }};
  try_everything(directory, operation, tally);
  tally.print("load");
  EXPECT_GT(tally.refused, 0) << "control";
  EXPECT_GT(olds, 0);
  EXPECT_GT(news, 0);
  figure("before {}, loaded {}", olds, news);
}

// Replaces both states of the largest parameter.
TEST(Faults, InWriteState) {
  const TemporaryDirectory directory(kFast);
  const std::vector<Image> all = reference_images();
  const auto replace = [&](Trial& trial, const Image& by) {
    for (size_t k = 0; k < 2; ++k)
      trial.optimizer().write_state(0, static_cast<int>(k), by.params[0].codes[k].data(),
                                    by.params[0].scales[k].data());
  };
  Image mixed = all[4];  // the first state is written, the second not yet
  mixed.params[0].codes[0] = all[2].params[0].codes[0];
  mixed.params[0].scales[0] = all[2].params[0].scales[0];
  Image written = mixed;
  written.params[0].codes[1] = all[2].params[0].codes[1];
  written.params[0].scales[1] = all[2].params[0].scales[1];
  Tally tally;
  const Operation operation{steps_before(4), [&](Trial& trial) { replace(trial, all[2]); },
                            [&](Trial& trial, const std::optional<Error>& error) {
                              repeat_if_refused(
                                  trial, [&] { replace(trial, all[2]); }, tally);
                              const auto masks = matches(trial.image(), {&written, &mixed, &all[4]});
                              count(masks, tally);
                              uint32_t common = ~uint32_t{0};
                              for (const uint32_t mask : masks) common &= mask;
                              tally.wrong += common == 0;
                              tally.wrong += !error && !(common & 1);
                              tally.unusable += throws([&] { replace(trial, all[4]); });
                              finish(trial, 4, tally);
                              count(matches(trial.image(), {&all.back()}), tally);
                            }};
  try_everything(directory, operation, tally);
  tally.print("write_state");
  EXPECT_GT(tally.refused, 0) << "control";
}

}  // namespace
}  // namespace lowtide::testing
