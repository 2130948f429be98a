// Steps on a device. Only these can be pending (the device checks the gradients, and the step is uncounted if one is
// not finite), be recorded for replays, and borrow device memory between steps.
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
  // Both arguments outlive this object.
  DeviceSteps(ParamTable& table, StepBuffers& buffers);
  // Waits for all work queued on the callers' queues.
  ~DeviceSteps();

  StepResult step(std::span<const Gradient> grads, const StepOptions& options, const Ballots* ballots);
  StepResult prepare_replay(const StepOptions& options);
  int64_t prefetch(int64_t bytes, void* stream);
  int64_t demote(int64_t bytes);
  // Call after queueing work on the parameters.
  void note_queued(void* stream) { queued_ = device_.record(stream); }

  // Waits until it is known whether the last step was taken.
  void resolve();
  // Also throws the error that a pending step could not throw.
  void resolve_and_raise();
  void synchronize();
  // Tells the residences about a step's queue and the free memory.
  void announce(const StepOptions& options);

 private:
  // A step that was counted and queued with a guard.
  struct Pending {
    struct Before {
      int64_t param, steps;
      Carried carried;
      bool uninitialized;
      size_t pieces;  // entries in Pending::progress, after the previous parameter's
    };
    std::shared_ptr<Guard> guard;
    Device::Event queued;         // happens when the whole step is done
    std::vector<int64_t> params;  // parameters of the guarded items
    std::vector<Before> before;   // for undoing the step
    std::vector<Progress> progress;
    int64_t steps = 0;
    bool raises = false, replayed = false;
  };

  struct Recording {
    std::shared_ptr<Guard> guard;         // or nullptr
    bool decides = false;                 // by a search, or by what the framework found
    bool scales = false;                  // by the framework's loss scale; infinities are then skipped
    std::optional<double> clipped_scale;  // the gradients' scale, if the guard multiplies them
    std::vector<StepItem> parts;
    std::vector<Gradient> grads;
    std::deque<std::vector<int64_t>> strides;
    std::shared_ptr<RecordedStep> step;
  };

  // If the guard finds a bad gradient, resolve() restores the counts from before the step.
  void begin_pending(const StepPlan& plan, std::shared_ptr<Guard> guard, bool replayed);
  std::shared_ptr<QueuedClip> take_clip(StepOptions& options) const;
  // Returns a guard of the plan's items that clips, searches or does both; nullptr if it has nothing to do or is
  // unsupported.
  std::shared_ptr<Guard> queue_guard(StepPlan& plan, const std::shared_ptr<QueuedClip>& clip, bool searches,
                                     const StepOptions& options) const;
  void wait_for_steps();
  void raise_nonfinite();

  // recorded_steps.cpp: steps on a capturing queue and the input of their replays.
  StepResult record(std::span<const Gradient> grads, const StepOptions& options, const Ballots* ballots);
  // Refuses state that a recorded step could not use.
  void require_in_place() const;
  // Refuses replays that were not prepared.
  void check_replays() const;

  ParamTable& table_;
  StepBuffers& buffers_;
  Backend& backend_;
  Device& device_;
  Device::Event queued_;  // happens when everything that the last step queued is done
  std::optional<Pending> pending_;
  std::optional<int64_t> unraised_;  // the parameter with a bad gradient that kRaise has not reported yet
  std::vector<std::pair<Device::Event, std::shared_ptr<Guard>>> old_guards_;  // each with the work that uses it
  std::vector<std::unique_ptr<Recording>> recordings_;  // all of them: replays of any recording read its memory
  void* replay_queue_ = nullptr;
  bool replays_ = false;
};

}  // namespace lowtide
