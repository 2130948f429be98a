// Claims: replays of a recorded step take the same steps as plain calls, with the current hyper-parameters and step
// numbers; a replay that was not prepared changes nothing and is reported; other steps are refused by name.
#include "support/fake/fake_backend.h"
#include "support/device_twins.h"
#include "support/test.h"

namespace lowtide::testing {
namespace {

using fake::FakeBackend;

struct Recorder {
  explicit Recorder(Rng& rng, const Config& setup, const lowtide::Memory& memory = {}, bool guards = true) {
    fake::FakeBackendOptions options{.seed = rng.next(), .steps_pinned = true, .guards = guards};
    auto backend = std::make_unique<FakeBackend>(options);
    fake = backend.get();
    twins.emplace(rng, setup, memory, std::move(backend));
  }
  StepOptions options() const {
    StepOptions options{.stream = twins->queue()};
    return options;
  }
  int record() {
    if (recorded.empty()) recorded = twins->last_gradients();
    fake->begin_capture(twins->queue());
    try {
      twins->on_device().step(recorded, options());
    } catch (...) {
      fake->end_capture(twins->queue());
      throw;
    }
    return fake->end_capture(twins->queue());
  }
  // Returns true if the recording steps a parameter with state.
  bool has_state() {
    for (size_t i = 0; i < recorded.size(); ++i)
      for (const StateView& state : twins->on_device().state(static_cast<int64_t>(i)))
        if (recorded[i].data && state.numel > 0) return true;
    return false;
  }
  void replay(int recording) {
    twins->replay(recorded, [&] {
      twins->on_device().prepare_replay(options());
      fake->replay(recording, twins->queue());
    });
  }

  FakeBackend* fake;
  std::optional<Twins> twins;
  std::vector<Gradient> recorded;
};

TEST(RecordedSteps, FiftyReplaysAreFiftySteps) {
  Rng rng = seeded("recorded steps", 101);
  int64_t compared = 0, replays = 0, skipped = 0, stale = 0;
  for (int trial = 0; trial < 16; ++trial) {
    Config setup = random_setup(rng, false);
    setup.nonfinite = trial % 2 ? NonFinite::kPropagate : NonFinite::kSkip;
    lowtide::Memory memory{.chunk = 4096};
    Recorder recorder(rng, setup, memory);
    Twins& twins = *recorder.twins;
    for (int64_t n = rng.between(1, 5); n > 0; --n)
      twins.add(pick(rng, std::vector{DType::kF32, DType::kBF16}), random_sizes(rng));
    twins.on_device().place_states();
    twins.step(trial % 4 < 2 ? 1 : 0.7);  // for the parameters that have a gradient in the recording
    int recording = recorder.record();
    EXPECT_EQ(twins.on_device().report().steps, 1) << "recording takes no step";
    twins.spoil = [&](Tensor& grad) {
      if (trial % 2 == 0 && grad.numel && rng.chance(0.05)) grad.set(rng.below(grad.numel), INFINITY);
    };
    for (int i = 0; i < 50; ++i, ++replays) {
      if (rng.chance(0.3)) {
        setup.hyper.lr = 0.001 * static_cast<double>(rng.between(0, 30));
        setup.hyper.weight_decay = 0.1 * static_cast<double>(rng.below(2));
        twins.on_host().set_hyper(0, setup.hyper);
        twins.on_device().set_hyper(0, setup.hyper);
      }
      recorder.replay(recording);
      if (rng.chance(0.1)) {
        EXPECT_EQ(twins.differing(), 0) << "trial " << trial << ", replay " << i;
      }
      if (rng.chance(0.05)) {  // changes nothing, and the next call says so, once
        twins.on_device().synchronize();
        recorder.fake->replay(recording, twins.queue());
        expect_refusal([&] { twins.on_device().prepare_replay(recorder.options()); }, "without prepare_replay");
        ++stale;
      }
      if (rng.chance(0.05)) twins.step();  // a plain step in between
      if (rng.chance(0.05) && recorder.has_state()) {
        twins.on_device().offload();  // its state comes back at another place
        twins.on_device().onload();
        expect_refusal([&] { twins.on_device().prepare_replay(recorder.options()); }, "has moved since");
        recording = recorder.record();
      }
    }
    EXPECT_EQ(twins.differing(), 0) << "trial " << trial;
    EXPECT_EQ(twins.on_device().report().steps, twins.on_host().report().steps);
    skipped += twins.on_device().report().skipped_steps;
    expect_no_race(*recorder.fake);
    compared += twins.compared();
  }
  EXPECT_GT(skipped, 20);
  EXPECT_GT(stale, 15);
  figure("{} replays, {} of them skipped, {} more that were not prepared: differing bytes 0 of {}", replays, skipped,
         stale, compared);
}

// A step that is counted but not taken would shift all later step numbers.
TEST(RecordedSteps, WhatIsPreparedIsReplayedBeforeAnythingElse) {
  Rng rng = seeded("prepared twice", 103);
  int refused = 0;
  int64_t compared = 0;
  for (const NonFinite policy : {NonFinite::kPropagate, NonFinite::kSkip}) {
    Config setup{.hyper = default_hyper("adamw"), .nonfinite = policy};
    Recorder recorder(rng, setup);
    Twins& twins = *recorder.twins;
    twins.add(DType::kF32, {10, 300});
    twins.step();
    const int recording = recorder.record();
    bool spoils = false;
    twins.spoil = [&](Tensor& grad) {
      if (spoils) grad.set(5, INFINITY);
    };
    const auto refuses = [&](auto&& call) {
      expect_refusal(call, "before that replay");
      ++refused;
    };
    for (int i = 0; i < 6; ++i) {
      spoils = policy == NonFinite::kSkip && i % 2 == 0;  // an outcome left behind would be this replay's
      twins.replay(recorder.recorded, [&] {
        twins.on_device().prepare_replay(recorder.options());
        refuses([&] { twins.on_device().prepare_replay(recorder.options()); });
        if (policy == NonFinite::kSkip) refuses([&] { twins.on_device().report(); });
        recorder.fake->replay(recording, twins.queue());
      });
    }
    EXPECT_EQ(twins.differing(), 0);
    EXPECT_EQ(twins.on_device().report().steps, twins.on_host().report().steps);
    EXPECT_EQ(twins.on_device().report().skipped_steps, twins.on_host().report().skipped_steps);
    // Gives up a recording for another.
    twins.on_device().prepare_replay(recorder.options());
    recorder.record();
    twins.on_device().prepare_replay(recorder.options());
    compared += twins.compared();
  }
  figure("refused {}/18; differing bytes 0 of {}", refused, compared);
  EXPECT_EQ(refused, 18);
}

TEST(RecordedSteps, WhatCannotBeRecordedIsRefused) {
  Rng rng = seeded("not recorded", 102);
  Config setup{.hyper = default_hyper("adamw")};
  lowtide::Memory paged, managed;
  paged.chunk = 4096, paged.device = 3 * 4096;
  managed.managed = true;
  int refused = 0;
  const auto says = [&](const lowtide::Memory& memory, bool guards, bool placed, const char* wanted) {
    Recorder recorder(rng, setup, memory, guards);
    recorder.twins->add(DType::kF32, {10, 1000});
    if (placed) recorder.twins->step();
    expect_refusal(
        [&] {
          if (placed) return void(recorder.record());
          recorder.fake->begin_capture(recorder.twins->queue());
          const DeviceBytes grad(*recorder.fake, MemoryKind::kDevice, 40000);
          try {
            recorder.twins->on_device().step(std::vector{Gradient{grad.data(), DType::kF32, nullptr}},
                                             recorder.options());
          } catch (...) {
            recorder.fake->end_capture(recorder.twins->queue());
            throw;
          }
        },
        wanted);
    ++refused;
    if (placed) {
      recorder.twins->step();
      EXPECT_EQ(recorder.twins->differing(), 0) << "works on";
    }
  };
  says(paged, true, true, "state that is paged");
  says(managed, true, true, "state that is paged, managed");
  says({}, false, true, "wanted NonFinite::kPropagate");
  says({}, true, false, "has no state yet");
  Recorder recorder(rng, setup);
  recorder.twins->add(DType::kF32, {100});
  recorder.twins->step();
  expect_refusal([&] { recorder.twins->on_device().prepare_replay(recorder.options()); }, "no recorded step");
  figure("refused {}/4", refused);
}

}  // namespace
}  // namespace lowtide::testing
