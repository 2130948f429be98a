// An Optimizer holds a table of parameters and, on a device, the machinery for steps there. The public calls are in
// optimizer.cpp (parameters, steps, signs, tiers), optimizer_state.cpp and optimizer_checkpoint.cpp.
#pragma once

#include <atomic>
#include <memory>
#include <optional>

#include "core/error.h"
#include "optim/async_save.h"
#include "optim/device_steps.h"
#include "optim/param_table.h"
#include "optim/step_plan.h"

namespace lowtide {

struct Optimizer::Impl {
  Impl(const OptimizerOptions& options, Env& env, std::unique_ptr<Backend> device)
      : table(options, env, std::move(device)),
        on_device(table.on.device ? std::make_unique<DeviceSteps>(table, buffers) : nullptr) {}
  ~Impl() {
    if (table.saving) table.saving->finish();
  }

  // While an Inside exists, a running save reads no state.
  class Inside {
   public:
    explicit Inside(Impl& impl) : saving_(impl.table.saving) {
      if (saving_) saving_->enter();
    }
    ~Inside() {
      if (saving_) saving_->leave();
    }
    Inside(const Inside&) = delete;
    Inside& operator=(const Inside&) = delete;

   private:
    const std::shared_ptr<AsyncSave> saving_;
  };

  // Refuses a second call during the first (from another thread, or from a callback on this one).
  class Call {
   public:
    explicit Call(Impl& impl) : impl_(impl) {
      LT_REQUIRE(!impl.busy.test_and_set(std::memory_order_acquire),
                 "this optimizer is in use by another thread; wait for its call to return");
      inside_.emplace(impl);
      impl.forget_save();
    }
    ~Call() {
      inside_.reset();
      impl_.busy.clear(std::memory_order_release);
    }
    Call(const Call&) = delete;
    Call& operator=(const Call&) = delete;

   private:
    Impl& impl_;
    std::optional<Inside> inside_;
  };

  // A call that touches state: it first resolves the last step and brings back state that was set aside.
  class StateCall : Call {
   public:
    explicit StateCall(Impl& impl) : Call(impl) {
      impl.resolve();
      impl.table.onload();
    }
  };

  // A call that only reads state: it resolves the last step. State that a device has set aside is read where it lies.
  class ReadCall : Call {
   public:
    explicit ReadCall(Impl& impl) : Call(impl) {
      impl.resolve();
      impl.table.bring_to_ram();
    }
  };

  void resolve() {
    if (on_device) on_device->resolve();
  }
  // Call once the save's outcome has been reported.
  void forget_save() {
    if (!table.saving || !table.saving->is_over()) return;
    table.saving->let_go(table);
    table.saving.reset();
  }

  ParamTable table;
  StepBuffers buffers;
  std::unique_ptr<DeviceSteps> on_device;  // nullptr if steps are done when they return
  std::atomic_flag busy;
};

// Gives the library access to the inside of an Optimizer. Not public.
struct OptimizerEnv {
  using Call = Optimizer::Impl::Call;
  using Inside = Optimizer::Impl::Inside;
  using StateCall = Optimizer::Impl::StateCall;
  static Optimizer::Impl& impl(Optimizer& of) { return *of.impl_; }

  // Like Optimizer(options), but files and state memory go through the given Env, where tests can make any call fail.
  // env outlives the optimizer. device: the parameters' backend if they are not in host memory.
  static Optimizer make(const OptimizerOptions& options, Env& env, std::unique_ptr<Backend> device = nullptr);
};

}  // namespace lowtide
