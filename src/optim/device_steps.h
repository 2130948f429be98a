// Steps on a device. Only they can be pending (the device searches the gradients itself, and the step is uncounted if
// it finds one that is not finite), be recorded for replays, and borrow device memory between steps.
#pragma once

#include <deque>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "optim/step_plan.h"

namespace lowtide {

class DeviceSteps {
 public:
  // Both outlive this object.
  DeviceSteps(ParamTable& table, StepBuffers& buffers);
  // Waits until all that is queued on callers' queues has happened.
  ~DeviceSteps();

  StepResult step(std::span<const Gradient> grads, const StepOptions& options, const Ballots* ballots);
  StepResult prepare_replay(const StepOptions& options);
  int64_t prefetch(int64_t bytes, void* stream);
  int64_t demote(int64_t bytes);
  // Work for the parameters was queued there.
  void note_queued(void* stream) { queued_ = device_.record(stream); }

  // Waits until it is known whether the last step was taken.
  void resolve();
  // And throws what a step could not throw by itself.
  void resolve_and_raise();
  void synchronize();
  // Tells residences of the step to come: its queue, and how much memory is free.
  void announce(const StepOptions& options);

 private:
  // A step that is counted, and queued with a guard.
  struct Pending {
    struct Before {
      int64_t param, steps;
      Carried carried;
      bool uninitialized;
      size_t pieces;  // as many of Pending::progress, which follow those of the one before
    };
    std::shared_ptr<Guard> guard;
    Device::Event queued;         // all of the step
    std::vector<int64_t> params;  // parameters of the items that the guard counts
    std::vector<Before> before;   // to go back to
    std::vector<Progress> progress;
    int64_t steps = 0;
    bool raises = false, replayed = false;
  };

  struct Recording {
    std::shared_ptr<Guard> guard;  // or nullptr
    std::vector<StepItem> parts;
    std::vector<Gradient> grads;
    std::deque<std::vector<int64_t>> strides;
    std::shared_ptr<RecordedStep> step;
  };

  // The plan's counts are what the step is uncounted to if the guard finds something.
  void begin_pending(const StepPlan& plan, std::shared_ptr<Guard> guard, bool replayed);
  std::shared_ptr<QueuedClip> take_clip(StepOptions& options) const;
  void wait_for_steps();
  void raise_nonfinite();

  // recorded_steps.cpp: a step on a capturing queue, and what its replays need.
  StepResult record(std::span<const Gradient> grads, const StepOptions& options, const Ballots* ballots);
  // Refuses state that a recorded step would not find.
  void require_in_place() const;
  // Refuses replays that nothing was prepared for.
  void check_replays() const;

  ParamTable& table_;
  StepBuffers& buffers_;
  Backend& backend_;
  Device& device_;
  Device::Event queued_;  // all that the last step has queued on the caller's stream
  std::optional<Pending> pending_;
  std::optional<int64_t> unraised_;  // the parameter whose gradient kRaise has not reported yet
  std::vector<std::pair<Device::Event, std::shared_ptr<Guard>>> old_guards_;  // and what uses them
  std::vector<std::unique_ptr<Recording>> recordings_;  // all: what a replay of any reads must live
  void* replay_queue_ = nullptr;
  bool replays_ = false;
};

}  // namespace lowtide
