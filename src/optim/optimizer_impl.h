// What an Optimizer holds, and what its parts share: optimizer.cpp has the public calls, optimizer_step.cpp the step,
// optimizer_norms.cpp what some rules have to know of whole parameters before it, optimizer_signs.cpp ballots and steps
// by signs, optimizer_state.cpp where state goes and comes from, optimizer_pending.cpp steps of which it is not known
// yet whether they are taken, optimizer_replay.cpp recorded steps, optimizer_residency.cpp how much device memory state
// has.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "backend/cpu/cpu_backend.h"
#include "backend/registry.h"
#include "backend/catalog.h"
#include "core/error.h"
#include "core/thread_pool.h"
#include "lowtide/optimizer.h"
#include "optim/checkpoint.h"
#include "optim/home.h"
#include "optim/hyper.h"
#include "optim/parameter.h"

namespace lowtide {

// That a parameter can be said to have taken: rules count in double.
inline constexpr int64_t kMostSteps = int64_t{1} << 53;

inline constexpr long long ll(int64_t n) { return n; }

// memcpy that takes null pointers where there is nothing to copy.
inline void copy_bytes(void* to, const void* from, int64_t bytes) {
  if (bytes) std::memcpy(to, from, static_cast<size_t>(bytes));
}

// Of a parameter, as its rule's terms are (portable/norms.h).
struct ParamNorms {
  double of[2] = {};
};

// A group's arguments for one step number: all its parameters usually share one, but for rules with norms.
struct ArgsEntry {
  int group;
  int rule, codec;
  int64_t t;
  bool first, own;
  bool direction;       // what is to be subtracted, instead of a step
  uint32_t stochastic;  // bit k: state k is rounded so
  alignas(16) std::byte bytes[kArgsBytes];
};

// Refuses a second call while one is under way (another thread, or a callback of this one).
class Exclusive {
 public:
  explicit Exclusive(std::atomic_flag& busy) : busy_(busy) {
    LT_REQUIRE(!busy_.test_and_set(std::memory_order_acquire),
               "this optimizer is in use by another thread; wait for its call to return");
  }
  ~Exclusive() { busy_.clear(std::memory_order_release); }
  Exclusive(const Exclusive&) = delete;
  Exclusive& operator=(const Exclusive&) = delete;

 private:
  std::atomic_flag& busy_;
};

struct Optimizer::Impl {
  // A step that is counted, and queued with a guard.
  struct Pending {
    struct Before {
      int64_t param, steps;
      bool uninitialized;
      std::vector<Progress> progress;
    };
    std::shared_ptr<Guard> guard;
    Device::Event queued;         // all of the step
    std::vector<int64_t> params;  // of the items that the guard counts
    std::vector<Before> before;   // to go back to
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

  // `of_device`: where parameters are not in host memory.
  Impl(const OptimizerOptions& options, Env& of_env, std::unique_ptr<Backend> of_device = nullptr)
      : env(of_env),
        rule(find_rule(options.rule)),
        nonfinite(options.nonfinite),
        seed(options.seed),
        host(cpu::make_backend(options.cpu_target)),
        elsewhere(of_device ? std::move(of_device) : open_elsewhere(options)),
        backend(elsewhere ? elsewhere.get() : host.get()) {
    set_threads(options.threads);
    use_allocator(options.allocator);
    if (shared_allocator) opened_on = options.stream;
    add_home(options.memory);
  }

  void add_home(const Memory& memory) {
    homes.push_back(std::make_unique<Home>(env, memory, *backend, shared_allocator));
    homes.back()->tell(opened_on, -1);
  }

  ~Impl() {
    if (!backend->device()) return;
    try {
      wait_for_steps();
    } catch (...) {  // a device that is lost uses nothing
    }
  }

  // Until all that is queued on callers' queues has happened.
  void wait_for_steps() {
    Device& device = *backend->device();
    device.host_wait(stepped);
    if (replays) device.host_wait(device.record(replay_queue));
  }

  void use_allocator(const DeviceAllocator& from) {
    if (!from.allocate && !from.free) return;
    LT_REQUIRE(from.allocate && from.free, "got an allocator with one function of two, wanted both or none");
    LT_REQUIRE(backend->device(), "got an allocator of device memory for parameters in host memory, wanted none");
    backend->device()->use_allocator({from.context, from.allocate, from.free});
    shared_allocator = true;
  }

  static std::unique_ptr<Backend> open_elsewhere(const OptimizerOptions& options) {
    if (options.backend != "cpu") return open_backend(options.backend, options.device, options.stream);
    LT_REQUIRE(options.device.empty() && !options.stream,
               "got device '%s' and stream %p for the cpu backend, wanted none", options.device.c_str(),
               options.stream);
    return nullptr;
  }

  void set_threads(int n) {
    LT_REQUIRE(n >= 0, "got threads=%d, wanted 0 (one per core) or more", n);
    threads = n ? n : available_threads();
  }

  static std::string name_of(int rule) { return rule_info(rule).name; }

  const GroupSpec& group_at(int group) const {
    LT_REQUIRE(group >= 0 && group < static_cast<int>(groups.size()), "got group %d of %zu", group, groups.size());
    return groups[static_cast<size_t>(group)];
  }

  Parameter& slot_at(int64_t param) {
    LT_REQUIRE(param >= 0 && param < ll(static_cast<int64_t>(slots.size())), "got parameter %lld of %zu", ll(param),
               slots.size());
    return slots[static_cast<size_t>(param)];
  }

  Parameter& slot_with_state(int64_t param, int k) {
    Parameter& slot = slot_at(param);
    const int states = slot.has_state ? slot.arrays(slot.state_rule) : 0;
    LT_REQUIRE(k >= 0 && k < states, "got state %d of parameter %lld, which has %d", k, ll(param), states);
    return slot;
  }

  void require_decoded(int64_t param, int k) {
    const Parameter& slot = slot_with_state(param, k);
    LT_REQUIRE(
        k < rule_info(slot.state_rule).states,
        "got array %d of parameter %lld, the residual of its weights, which has no values of its own; read_state "
        "and write_state copy it, join_master makes weights of it",
        k, ll(param));
  }

  void require_whole(const Parameter& slot, int64_t param) const {
    LT_REQUIRE(!slot.partially_written,
               "the state of parameter %lld was being replaced when that failed, and is part old, part new: load or "
               "write it again",
               ll(param));
  }

  static Layout checked_layout(const TensorView& view) {
    check_param_dtype(view.dtype);
    Layout layout = Layout::make(view.sizes, view.strides);
    LT_REQUIRE(layout.numel == 0 || view.data, "got a null pointer for a parameter of %lld elements", ll(layout.numel));
    LT_REQUIRE(!layout.overlaps_itself(),
               "two elements of the parameter may share one address (an expanded view?); step a copy of it instead");
    return layout;
  }

  void bind(Parameter& slot, const TensorView& view, Layout layout) {
    slot.data = view.data;
    slot.dtype = view.dtype;
    slot.layout = std::move(layout);
    addresses_changed = true;
  }

  // Follows a change of momentum to or from 0: SGD's state comes with it and stays.
  void refresh_rule(Parameter& slot) {
    const int now = effective_rule(slot.family, groups[static_cast<size_t>(slot.group)].hyper);
    if (slot.rule == now) return;
    slot.rule = now;
    if (slot.states(now) > slot.states(slot.state_rule)) slot.has_state = false;  // allocated by the next step
  }

  // True if memory of two parameters, of all or of those that are stepped now, may overlap: they are then stepped one
  // after another, in order.
  bool parameters_overlap(bool of_items) const;

  Home& home_of(const Parameter& slot) const { return *homes[groups[static_cast<size_t>(slot.group)].budget]; }

  // What offload() put aside comes back. Every call that touches state begins with it.
  void onload() {
    for (const std::unique_ptr<Home>& home : homes) home->onload(threads);
  }

  // Gives `param` its state, and with it, under a budget, every parameter of that budget that is waiting for one or has
  // a gradient now: what fits can only be judged over all of them. `grads`: of this step, or empty.
  void place(size_t param, std::span<const Gradient> grads);

  const ArgsEntry& args_for(const Parameter& slot, int64_t param, int64_t steps, bool first, bool direction);

  // The item's arguments, and how its states and weights are rounded, for the step after `steps` of them.
  void set_step(const Parameter& slot, int64_t steps, bool first, int64_t param, bool direction, StepItem& item);

  // Zeroes what the prepared step writes directions to: out of zeros, args of lr = -1 make them.
  void clear_directions(void* stream);

  bool needs_norms() const {
    return std::any_of(groups.begin(), groups.end(),
                       [](const GroupSpec& group) { return rule_info(group.rule).norms; });
  }
  class NormSums;
  // Finds the norms of these items' parameters, and gives the items arguments of theirs. Waits for the device; if it
  // throws, nothing has changed.
  void measure(std::span<StepItem> of, std::span<const int64_t> params, void* stream);
  bool reads_state_twice(const Home& home) const;

  void set_gradient(Parameter& slot, const Gradient& grad, StepItem& item) const;

  // Everything that can fail happens here, before any parameter or state is touched.
  void prepare(std::span<const Gradient> grads, const StepOptions& options);

  // Whether a step of this parameter needs its store.
  bool streams(const Parameter& slot) const { return slot.paged && slot.arrays(slot.rule) > 0; }

  void count(std::span<const int64_t> params) {
    for (const int64_t param : params) {
      Parameter& slot = slots[static_cast<size_t>(param)];
      ++slot.steps;
      if (slot.arrays(slot.rule) > 0) slot.uninitialized = false;
    }
  }

  // Steps the items that are directly addressable, then those in stores, chunk by chunk.
  void step_paged(void* stream);

  // Whether this step has stepped all pieces of the `streamed` parameters that live in `home`.
  bool all_done(const Home& home, const std::vector<const StepItem*>& streamed) const;

  // What is to be stepped of an item, of which this piece is in memory.
  StepItem part_of(const StepItem& whole, const Piece& piece, std::byte* memory, int64_t write_offset);

  // Appends the parts of those that are `streamed`, where their chunks are.
  void append_parts(std::span<const Store::PlacedChunk> chunks, const std::vector<const StepItem*>& streamed,
                    std::vector<StepItem>& parts);
  // Queues their step, in one call.
  void step_chunks(std::span<const Store::PlacedChunk> chunks, const std::vector<const StepItem*>& streamed,
                   void* stream);

  // Counts a step of the parameters of which some piece was stepped; the others' pieces fall behind.
  void settle();

  // From here on the pieces that are behind count as their parameters do.
  void catch_up();

  // Before state is replaced: a failure of an earlier call is none of this one.
  void forget_unwritten();

  // Throws kIo if state that was replaced could not be written (it is complete, and kept in RAM).
  void check_written();

  // What every step is refused for.
  void check_arguments(std::span<const Gradient> grads, const StepOptions& options) const;

  // Whether this step looks at its gradients.
  bool searches(const StepOptions& options) const {
    return nonfinite != NonFinite::kPropagate && !options.assume_finite;
  }

  // Whether the prepared gradients are finite.
  StepResult search(const StepOptions& options);

  // prepare() and search().
  StepResult check(std::span<const Gradient> grads, const StepOptions& options);

  [[noreturn]] static void fail_nonfinite(int64_t param);

  // What the prepared step is uncounted by, if `guard` finds something.
  void begin_pending(std::shared_ptr<Guard> guard, bool replayed);

  // Waits until it is known whether the last step was taken.
  void resolve();

  // And throws what a step could not throw by itself.
  void resolve_and_raise();

  // A step on a capturing queue.
  StepResult record(std::span<const Gradient> grads, const StepOptions& options);

  StepResult prepare_replay(const StepOptions& options);

  // Refuses replays that nothing was prepared for.
  void check_replays();

  // Refuses to go on before what was prepared has been replayed.
  void require_replayed() const;

  // Refuses state that a recorded step would not find.
  void require_in_place() const;

  void gather_parts(std::vector<StepItem>& parts);

  // Gives back what was borrowed for a step that touches no state.
  void end_prefetch();

  // What homes should know of a step before it.
  void tell_homes(const StepOptions& options);

  // Called with the optimizer in use.
  StepResult step(std::span<const Gradient> grads, const StepOptions& options);

  // A step of signs in place of parameters: while it is under way, `voting` says where those go.
  StepResult ballots(std::span<const Gradient> grads, const SignBuffer& out, bool zero_is_plus,
                     const StepOptions& options);

  // Number of a parameter's first sign, or, of one behind the last, of all signs.
  int64_t sign_offset(size_t param) const;

  void apply_signs(const SignBuffer& signs, void* stream);

  // Refuses memory for signs that is missing, and a stream for host memory.
  void check_signs(const SignBuffer& signs, bool presence, void* stream) const;

  // All of it, on the stream that the step is ordered on.
  void clear_signs(const SignBuffer& signs, void* stream);

  // Calls visit(item, first element, elements) for the parts of array k: one where it is directly addressable, else
  // each piece. Of a residual the item has codes alone, in no codec.
  template <class Fn>
  void for_each_part(int64_t param, int k, bool change, Fn&& visit) {
    Parameter& slot = slot_with_state(param, k);
    CodecItem item;
    item.codec = slot.codec;
    item.is_signed = (rule_info(slot.state_rule).signed_mask >> k) & 1;
    item.rows = slot.layout.rows;
    item.row_length = slot.layout.row_length;
    item.codes = slot.codes[k];
    item.scales = slot.scales[k];
    item.blocks = slot.layout.blocks(kBlockElements);
    const uint32_t bit = uint32_t{1} << k;
    if (!change) require_whole(slot, param);
    if (!slot.paged) {
      visit(item, int64_t{0}, slot.layout.numel);
      if (change) slot.partially_written &= ~bit;
      return;
    }
    const uint32_t before = slot.partially_written;
    home_of(slot).store()->visit(param, change, [&](const Piece& piece, std::byte* memory) {
      item.first_block = piece.first_block;
      item.blocks = piece.blocks;
      item.codes = memory + piece.codes_at[k];
      item.scales = piece.format[k].scales ? reinterpret_cast<float*>(memory + piece.scales_at[k]) : nullptr;
      visit(item, piece.first_element, piece.elements);
      if (change) slot.partially_written |= bit;
    });
    if (change) slot.partially_written = before & ~bit;
  }

  // What a checkpoint says of the state as it is now.
  Checkpoint describe(const std::string& metadata) const;

  // of_rule -1: without state.
  CheckpointParam describe(const Parameter& slot, int of_rule) const;

  void copy_state(const StatePart& part, int64_t offset, int64_t bytes, std::byte* to, const std::byte* from);

  void check_fits(const Checkpoint& saved) const;

  void allocate_for(const Checkpoint& saved);

  void set_steps_of(const Checkpoint& saved);

  void clear_state(int64_t param, int k);

  StateFormat format_of_array(int64_t param, int k) {
    const Parameter& slot = slot_at(param);
    return slot.format(slot.state_rule, k);
  }

  // All states of that rule.
  // Whose states a file has: those of the fullest rule; beside a residual, which has its place behind them, those that
  // the slot has, or of the rule in effect if they are as many.
  int rule_saved(const Parameter& slot, const CheckpointParam& saved) const;
  void allocate_states(size_t param, int of_rule);  // unless it has as many

  Env& env;  // of all files and all state memory

  int rule;  // of groups that name no other

  NonFinite nonfinite;

  uint64_t seed;  // of stochastic rounding

  int threads = 1;

  std::unique_ptr<Backend> host;       // converts state that it brings to host memory
  std::unique_ptr<Backend> elsewhere;  // where the parameters are, if not in host memory
  Backend* backend;                    // that steps

  bool shared_allocator = false;  // device memory is a framework's
  void* opened_on = nullptr;      // whose queue is this until a step says another

  Device::Event stepped;  // all that the last step has queued on the caller's stream

  std::vector<std::unique_ptr<Home>> homes;  // the first is that of groups without a budget of their own
  std::vector<GroupSpec> groups;

  std::deque<Parameter> slots;  // stable addresses: items and callers point into them
  std::atomic_flag busy = ATOMIC_FLAG_INIT;

  bool addresses_changed = true, ordered = false;

  int64_t steps = 0, skipped_steps = 0;

  // One step's work list, kept for its memory.
  std::vector<StepItem> items;

  std::vector<int64_t> item_params;

  std::vector<int64_t> empty_params;  // stepped, but without elements to work on: a shard of no rows

  std::deque<ArgsEntry> args;

  std::vector<ParamNorms> norms;  // of each parameter, once they are known; empty before

  // Of a step that makes signs, otherwise nullptr.
  const SignBuffer* voting = nullptr;

  std::vector<BallotTarget> targets;  // of all parameters

  std::optional<Pending> pending;

  std::optional<int64_t> unraised;  // the parameter whose gradient kRaise has not reported yet

  std::vector<std::pair<Device::Event, std::shared_ptr<Guard>>> old_guards;  // and what uses them

  std::vector<std::unique_ptr<Recording>> recordings;  // all: what a replay of any reads must live

  void* replay_queue = nullptr;

  bool replays = false;
};

}  // namespace lowtide
