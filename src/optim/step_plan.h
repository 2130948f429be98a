// One step, from its gradients to the last kernel: the parameters stepped and their arguments. A plan lives on the
// stack of its step; only the memory of its lists survives the step, for the next one.
#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>
#include <span>
#include <vector>

#include "backend/device.h"
#include "backend/random_keys.h"
#include "backend/term_sums.h"
#include "optim/carried.h"
#include "optim/param_table.h"

namespace lowtide {

// A rule's arguments for a step number: all parameters of a group usually share one set.
struct StepArgs {
  int group, rule, codec;
  int64_t t;
  Carried carried;  // before the step
  bool first, own;
  Moves moves;
  uint32_t stochastic;  // bit k: state k is rounded stochastically
  float grad_scale;
  alignas(16) std::byte bytes[kArgsBytes];

  bool fit(const Parameter& param, int64_t step, const Carried& before, bool begins, Moves what) const {
    return t == step && carried == before && group == param.group && first == begins && codec == param.codec &&
           rule == param.rule && moves == what && !own;
  }
};

// The arguments with which updates move a group's parameters.
struct MoveArgs {
  alignas(16) std::byte bytes[kArgsBytes];
};

// The norms of a parameter's terms (portable/norms.h).
struct ParamNorms {
  double of[2] = {};
};

// The memory of a plan's lists.
struct StepBuffers {
  std::vector<StepItem> items, direct, batch;
  std::vector<int64_t> params, empty, wanted, direct_params, batch_params;
  std::vector<const StepItem*> streamed;  // by parameter
  std::vector<Progress*> stepped;         // progress of the pieces in `batch`
  std::vector<BallotTarget> targets;
  std::vector<ParamNorms> norms;
  std::deque<StepArgs> args;
  std::vector<StepItem> moves;     // by updates
  std::deque<MoveArgs> move_args;  // by group
  std::vector<std::byte> copies;   // of states, for a preview
  DeviceBytes device_copies;       // the same on a device
  // ParamTable::changes when the items were made: while it is unchanged, a parameter's item differs from the last
  // step's only in gradient and arguments. 0: make them again.
  uint64_t made_at = 0;
};

// The destination of signs that replace a move of parameters.
struct Ballots {
  SignBuffer out;
  bool zero_is_plus = true;
};

class StepPlan {
 public:
  // ballots: nullptr: parameters move. All arguments outlive the plan. Throws kInvalidArgument for errors common to all
  // steps.
  StepPlan(ParamTable& table, StepBuffers& buffers, std::span<const Gradient> grads, const StepOptions& options,
           const Ballots* ballots = nullptr);
  StepPlan(const StepPlan&) = delete;
  StepPlan& operator=(const StepPlan&) = delete;

  // Brings back state that offload() put aside, and makes the items. Everything that can fail without a backend fails
  // here, before any parameter or state is touched; states may be allocated.
  void gather();

  std::span<StepItem> items() { return items_; }
  // The parameter numbers of the items, including parameters without elements: shards without rows.
  std::span<const int64_t> params() const { return {buffers_.params.data(), items_.size()}; }
  const std::vector<int64_t>& empty() const { return buffers_.empty; }
  void set_guard(Guard* guard);

  // True if this step checks its gradients; the first item with a non-finite one, -1: none.
  bool searches() const { return table_.nonfinite != NonFinite::kPropagate && !options_.assume_finite; }
  int64_t first_bad() const {
    return searches() ? backend_.first_nonfinite(items_, table_.on.threads, options_.stream) : -1;
  }
  // The result of a step that such an item stops. Throws for NonFinite::kRaise.
  StepResult refuse(int64_t bad) const;
  [[noreturn]] static void fail_nonfinite(int64_t param);
  // The same for sums over all parameters that are not finite, though gradients are.
  StepResult refuse_sums(const TermSums& sums) const;

  // Takes the step and counts it, or counts it as skipped if gradients are not finite. guarded: the items' guard checks
  // them. See Optimizer::step for its exceptions.
  StepResult take(bool guarded = false);

  // The sums of the items' terms (step_sums.cpp).
  TermSums sum_terms();
  // True if it sums terms of each gradient, so that one that is not finite makes a sum that is not.
  bool sums_all() const {
    return table_.has_sums && std::ranges::all_of(params(), [&](int64_t number) {
             return is_summed(table_.params[static_cast<size_t>(number)]);
           });
  }

  // If the device sums norms itself, makes the items add theirs to sums that are zero from here on, and returns true.
  bool place_norms();
  void clear_norms();

  // For recordings: everything that would be stepped, with a part for each piece; and counting that step.
  void append_parts_in_place(std::vector<StepItem>& parts);
  void count_all();

 private:
  StepItem make_item(Parameter& param, size_t number);
  // False with another rule, and in a group that stands still.
  bool is_summed(const Parameter& param) const {
    return rule_info(param.rule).sums && table_.group_of(param).hyper.lr != 0;
  }
  // Sets the item's arguments, and the rounding of its states and weights, for the step after `steps` steps.
  void set_args(const Parameter& param, int64_t number, int64_t steps, bool first, StepItem& item) {
    const Moves moves = update_of(number)                       ? Moves::kNothing
                        : ballots_ || is_direction(item, param) ? Moves::kDirection
                                                                : Moves::kWeights;
    if (!args_ || !args_->fit(param, steps + 1, carried_before(param, steps + 1), first, moves) ||
        !buffers_.norms.empty())
      args_ = &find_args(param, number, steps + 1, first, moves);
    item.args = args_->bytes;
    item.grad_scale = args_->grad_scale;
    item.stochastic = args_->stochastic;
    if (item.stochastic || item.master.kind) set_keys(table_.seed, steps + 1, number, item);
  }
  const StepArgs& find_args(const Parameter& param, int64_t number, int64_t t, bool first, Moves moves);
  bool is_direction(const StepItem& item, const Parameter& param) const {
    return !ballots_ && item.param_layout == &param.shape;
  }
  const Update* update_of(int64_t number) const {
    const size_t i = static_cast<size_t>(number);
    return !options_.updates.empty() && options_.updates[i].data ? &options_.updates[i] : nullptr;
  }
  // True if a step of this parameter needs its store.
  static bool streams(const Parameter& param) { return param.paged && param.arrays(param.rule) > 0; }

  void make_targets();
  void make_move_args();
  void clear_targets() const;
  // Steps these items of the parameters `numbers`, and then moves the parameters that have updates.
  void step_items(std::span<const StepItem> items, std::span<const int64_t> numbers, bool ordered);
  // Gives the directions of a step from copies of the states (step_preview.cpp).
  class StateCopies;
  void preview();
  void step_streamed();
  void split();
  StepItem part_of(const StepItem& whole, const Piece& piece, std::byte* memory, int64_t write_offset);
  // Calls fn(part, piece) for the pieces of these chunks whose parameter streams in this step.
  template <class Fn>
  void for_each_part(std::span<const Store::PlacedChunk> chunks, Fn&& fn) {
    for (const Store::PlacedChunk& chunk : chunks)
      for (const Piece& piece : chunk.pieces)
        if (const StepItem* const whole = buffers_.streamed[static_cast<size_t>(piece.param)])
          fn(part_of(*whole, piece, chunk.memory, chunk.write_offset), piece);
  }
  // A pass over items_[first, first + count) leaves an item out, reads it at once, or chunk by chunk.
  enum class Read { kNot, kAtOnce, kByChunks };
  // A pass before the step: calls add(item, number) for the items for which how(item, param) says kAtOnce, then done().
  // It does so again for the pieces in each chunk of the others, before the next chunk reuses its memory.
  template <class How, class Add, class Done>
  void pass(size_t first, size_t count, How&& how, Add&& add, Done&& done) {
    buffers_.streamed.assign(table_.params.size(), nullptr);
    std::vector<int64_t> wanted;
    for (size_t i = first; i < first + count; ++i) {
      const int64_t number = params()[i];
      const Read read = how(items_[i], table_.params[static_cast<size_t>(number)]);
      if (read == Read::kAtOnce) add(items_[i], number);
      if (read != Read::kByChunks) continue;
      buffers_.streamed[static_cast<size_t>(number)] = &items_[i];
      wanted.push_back(number);
    }
    done();
    for (const std::unique_ptr<Residence>& residence : table_.residences) {
      if (!residence->store() || wanted.empty()) continue;
      residence->store()->look(
          [&](std::span<const Store::PlacedChunk> chunks) {
            for_each_part(chunks, [&](const StepItem& part, const Piece& piece) { add(part, piece.param); });
            done();
          },
          table_.on.threads, wanted, options_.stream);
    }
  }
  // A pass in which read(items) gets the items of each turn together.
  template <class How, class Reader>
  void pass_together(How&& how, Reader&& read) {
    buffers_.batch.clear();
    pass(
        0, items_.size(), how, [&](const StepItem& item, int64_t) { buffers_.batch.push_back(item); },
        [&] {
          if (!buffers_.batch.empty()) read(buffers_.batch);
          buffers_.batch.clear();
        });
  }
  void step_chunks(std::span<const Store::PlacedChunk> chunks);
  bool all_done(const Residence& residence) const;
  void count(std::span<const int64_t> params) {
    for (const int64_t number : params) {
      carry(table_.params[static_cast<size_t>(number)]);
      table_.params[static_cast<size_t>(number)].count_step();
    }
  }
  void carry(Parameter& param) {  // over the step that is about to be counted
    if (rule_info(param.rule).sums) {
      if (!estimate_.known()) return;  // shared already
      table_.share_estimate(estimate_);
      estimate_ = {};
    } else if (carried_count(param.rule)) {
      param.carried = next_carried(param, table_.group_of(param).hyper);
    }
  }
  void commit();

  // Pieces that are steps behind get arguments from the current hyper-parameters, and the estimate of all parameters.
  const Carried& carried_before(const Parameter& param, int64_t step) const {
    static const Carried kUnknown;
    if (table_.has_sums && rule_info(param.rule).sums) return began_;
    return step == param.steps + 1 ? param.carried : kUnknown;
  }

  // step_sums.cpp. Refuses groups that cannot have one estimate, and gives it to all parameters.
  void begin_estimate();
  void check_alike(size_t one, size_t other) const;
  // Gives all items arguments with these sums.
  void take_sums(const TermSums& sums);

  // step_norms.cpp. A call that throws has changed nothing. Finds the norms of the items from `first` on, and gives
  // them arguments with these. Waits for the device.
  class NormSums;
  void measure(size_t first, size_t count);
  // Call after place_norms(): queues the sums of items that stream; the other items' steps add theirs.
  void add_streamed_norms();

  ParamTable& table_;
  StepBuffers& buffers_;
  Backend& backend_;
  std::span<const Gradient> grads_;
  const StepOptions& options_;
  const Ballots* ballots_;
  std::span<StepItem> items_;
  size_t args_used_ = 0;
  const StepArgs* args_ = nullptr;  // the last item's
  int mover_ = 0;                   // the rule that moves by updates: SGD without momentum
  double sums_[2] = {};             // over all parameters; 0: not known yet
  int estimating_ = -1;             // the group with the estimate's hyper-parameters
  Carried began_;                   // the estimate before this step
  Carried estimate_;                // after this step, until it is counted
  bool ordered_ = false;            // parameters share memory: step them one after another
};

// The number of blocks of an item, and an item of some of them: [begin, begin + count).
int64_t blocks_of(const StepItem& item);
StepItem slice_of(const StepItem& item, int64_t begin, int64_t count);

// Index of a parameter's first sign; for param_count, the number of all signs.
int64_t sign_offset(const ParamTable& table, size_t param);
// Refuses missing memory for signs, and a stream for host memory.
void check_signs(const ParamTable& table, const SignBuffer& signs, bool presence, const void* stream);

}  // namespace lowtide
