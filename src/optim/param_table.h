// The table of an optimizer's parameters, their groups and their budgets: adds, finds, places and refuses them.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "backend/backend.h"
#include "core/error.h"
#include "lowtide/optimizer.h"
#include "optim/parameter.h"
#include "optim/residence.h"

namespace lowtide {

// The backends of an optimizer: the CPU, and a device if its parameters are there.
struct Backends {
  // device: the backend of the parameters, if not the one in the options. Throws kInvalidArgument or kUnsupported.
  Backends(const OptimizerOptions& options, std::unique_ptr<Backend> device);

  // 0: one per core. Throws kInvalidArgument.
  void set_threads(int n);

  // Zero or copy memory on the parameters' side, ordered on `stream`.
  void clear(void* at, int64_t bytes, void* stream) const;
  void copy(void* to, const void* from, int64_t bytes, void* stream) const;

  std::unique_ptr<Backend> host;       // converts state that is brought to host memory
  std::unique_ptr<Backend> elsewhere;  // nullptr: the parameters are in host memory
  Backend& at_params;                  // one of the two: the one that steps
  Device* device;                      // nullptr: the parameters are in host memory
  int threads = 1;
  DeviceAllocator allocator;  // a framework's device memory; empty: the device's own
};

// The largest step count of a parameter: rules count in double.
inline constexpr int64_t kMostSteps = int64_t{1} << 53;

class AsyncSave;

struct ParamTable {
  ParamTable(const OptimizerOptions& options, Env& env, std::unique_ptr<Backend> device);

  // Each throws kInvalidArgument and changes nothing; add_param and place also throw what allocations throw.
  int add_group(const GroupOptions& options);
  void set_hyper(int group, const Hyper& hyper);
  int64_t add_param(int group, const TensorView& view, bool with_state, const std::optional<WholeParam>& whole);
  void rebind(int64_t param, const TensorView& view);

  const GroupSpec& group_at(int group) const;
  Parameter& at(int64_t param);
  Parameter& with_state(int64_t param, int k);
  const GroupSpec& group_of(const Parameter& param) const { return groups[static_cast<size_t>(param.group)]; }
  Residence& residence_of(const Parameter& param) const { return *residences[group_of(param).budget]; }
  // Refuses state that was only partly replaced.
  void require_whole(const Parameter& param, size_t number) const;

  // Gives `param` its state. Under a budget, every parameter of that budget that waits for its state, or has a gradient
  // now, gets its state too, because only all of them together determine what fits. `grads`: of this step, or empty.
  void place(size_t param, std::span<const Gradient> grads);
  void place_waiting();
  // Gives `param` all states of this rule, unless it already has as many.
  void allocate_states(size_t param, int rule);
  // Brings back the state that offload() put aside. Every call that changes state begins with this.
  void onload() {
    for (const std::unique_ptr<Residence>& residence : residences)
      if (residence->may_be_offloaded()) residence->onload(on.threads);
  }
  // Brings back only what is read by its address. Every call that reads state begins with this.
  void bring_to_ram() {
    for (const std::unique_ptr<Residence>& residence : residences)
      if (residence->may_be_offloaded() && !residence->device_store()) residence->onload(on.threads);
  }

  // The device's sums for norms of whole parameters, by number; nullptr if the host sums them, and waits.
  kernels::NormSums* norm_sums();
  bool waits_for_norms() { return needs_norms && !norm_sums(); }
  // True if a step on a device waits for numbers that its arguments need.
  bool waits_for_device() { return has_sums || waits_for_norms(); }

  // The numbers that all parameters of rules with sums carry (RuleInfo::sums), unknown before a step that moves
  // anything; and setting them. Throws kInvalidArgument if parameters carry different ones.
  Carried shared_estimate() const;
  void share_estimate(const Carried& now);

  // True if the memory of two parameters may overlap: among all of them, or among the `stepped` alone.
  bool overlap() { return overlap_ ? *overlap_ : *(overlap_ = find_overlap()); }
  bool overlap(std::span<const int64_t> stepped) const;

  Env& env;  // for all files and all state memory
  Backends on;
  int rule;  // the rule of groups that name no other
  NonFinite nonfinite;
  uint64_t seed;                                       // for stochastic rounding
  std::vector<std::unique_ptr<Residence>> residences;  // the first belongs to groups without their own budget
  std::vector<GroupSpec> groups;
  bool needs_norms = false;      // some rule needs norms of whole parameters before each step
  bool has_sums = false;         // some rule needs sums over all parameters before each step
  bool has_average = false;      // some rule evaluates weights other than those it trains (RuleInfo::make_average_args)
  std::deque<Parameter> params;  // stable addresses: items and callers point into them
  int64_t steps = 0, skipped_steps = 0;
  std::shared_ptr<AsyncSave> saving;  // told before state changes; nullptr: none is running, and no failure is
                                      // unreported
  // Counts changes of the rule, the memory or the state's memory of any parameter: results that a step derives from
  // these stay valid while the count does not change.
  uint64_t changes = 0;

 private:
  void add_residence(const Memory& memory);
  void bind(Parameter& param, const TensorView& view, Layout layout);
  void follow_group(Parameter& param);
  bool find_overlap() const;

  kernels::NormSums* norm_sums_ = nullptr;  // for this many parameters
  size_t norm_sums_room_ = 0;
  void* opened_on_;              // a framework's queue, until a step says another
  std::optional<bool> overlap_;  // for all parameters at their present addresses
};

}  // namespace lowtide
