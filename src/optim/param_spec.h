// A parameter as determined by options, sizes and types alone: the rule that steps it, the format and layout of its
// state, its bytes, the arguments of its steps, and every refusal. Pure: no optimizer, no state, no device.
// Registration, planning, checks of saved state and Python all ask it, so all decide and refuse alike.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "backend/backend.h"
#include "backend/catalog.h"
#include "lowtide/optimizer.h"
#include "memory/chunk.h"

namespace lowtide {

// The limit for one parameter, and for a whole plan: no sum of the bytes of their states overflows.
inline constexpr int64_t kMostElements = int64_t{1} << 52;

// Calls field(name, member, fixed) for every option of lowtide/group.def; members are texts, int64_t and the budget.
template <class Options, class Fn>
void for_each_option(Options&& options, Fn&& field) {
#define LT_GROUP_OPTION(name, value, fixed) field(#name, options.name, fixed);
#define LT_GROUP_BUDGET(name) field(#name, options.name, true);
  LT_GROUP_OPTIONS(LT_GROUP_OPTION, LT_GROUP_OPTION, LT_GROUP_BUDGET)
#undef LT_GROUP_OPTION
#undef LT_GROUP_BUDGET
}

// The checked options of a group, with names as catalog numbers.
struct GroupSpec {
  Hyper hyper;
  int rule = 0;  // the rule that users name
  int codec = 0, master = 0;
  RoundingMode rounding = RoundingMode::kAuto;
  int64_t min_quantized_numel = 0;
  size_t budget = 0;  // 0: the optimizer's; others in the order of the groups that set their own
};

// rule: the optimizer's. before: the existing groups; they and the optimizer have `budgets` budgets. A group with its
// own budget gets the number `budgets`. Throws kInvalidArgument for every reason to refuse a group, except the numbers
// in its budget (check_memory).
GroupSpec make_group(const GroupOptions& options, int rule, std::span<const GroupSpec> before = {}, size_t budgets = 1);

// Throws kInvalidArgument unless the group can switch to these values. has_params: it has parameters, whose states must
// not change; in_codec: some of their states are stored in the group's codec.
void check_change(const GroupSpec& group, const Hyper& to, bool has_params, bool in_codec);
void check_rounding(int codec, RoundingMode mode);
void check_param_dtype(DType dtype);

// Numbers that the rule carries from step to step beside states (optim/carried.h).
struct Carried {
  double of[kMaxCarried] = {kCarriedUnknown};  // unknown: computed from the current hyper-parameters, except switches

  bool known() const { return of[0] != kCarriedUnknown; }
  bool operator==(const Carried&) const = default;
};

// The target of a step.
enum class Moves {
  kWeights,
  kDirection,  // lr = -1, no decay: a parameter of zeros becomes the direction
  kNothing,    // lr = 0, no decay: only states change
};

// One step of a parameter, as far as its rule's arguments depend on it.
struct StepTerms {
  int64_t t = 1;       // the parameter's step number, from 1
  bool first = false;  // the state is still empty
  Moves moves = Moves::kWeights;
  Carried carried;      // before the step
  double norm[2] = {};  // norms of the whole parameter; 0: unknown, or not needed
};

// A parameter, without its memory and its strides.
struct ParamSpec {
  int family = 0;  // the rule that users name
  int rule = 0;    // the rule that steps: SGD without momentum steps as sgd_plain. Follows the group's hyper-parameters
  int codec = 0;   // the states' codec; may differ from the group's: see make_spec
  int master = 0;  // a number of masters.def; float32 weights have none
  std::vector<int64_t> sizes;
  Layout shape;  // contiguous, of these sizes
  ShardOrigin origin;

  // The arrays stored beside the parameter: the states of a rule, then the residual of its weights, if they have one.
  bool has_residual() const { return master_info(master).residual_bits > 0; }
  int states(int of_rule) const { return rule_info(of_rule).states; }
  int arrays(int of_rule) const { return states(of_rule) + (has_residual() ? 1 : 0); }
  bool is_signed(int of_rule, int k) const;
  StateFormat format(int of_rule, int k) const;
  StateView view(int of_rule, int k) const;  // array k, without its memory
  int64_t code_bytes(int of_rule, int k) const { return format(of_rule, k).code_bytes(shape.numel); }
  int64_t scale_bytes(int of_rule, int k) const;
  int64_t bytes(int of_rule) const;  // codes and scales of all arrays
  StateShape state_shape(int of_rule) const;

  // The rule with all states that the parameter can have: SGD's momentum may come later.
  int fullest_rule() const { return states(rule) < states(family) ? family : rule; }
  // True if the rule's norms of whole parameters or sums over all, if any, are computed from arrays.
  bool norms_read_arrays() const;

  // Writes the rule's arguments of a step, at most kArgsBytes. Returns which states are rounded stochastically: bit k.
  uint32_t make_args(const GroupSpec& group, const StepTerms& step, std::byte* args) const;
};

// The group's master, which float32 weights do not need.
inline int master_for(const GroupSpec& group, DType dtype) { return dtype == DType::kF32 ? 0 : group.master; }

// The codec is the group's, but float32 for a parameter that has fewer elements than min_quantized_numel, that the
// codec would not make smaller (rows of one element need a scale each), or whose shards cut blocks or are scattered in
// a row; 4-bit codes become dynamic8 if rows have odd length, and so no whole bytes. The `whole` of which the parameter
// is a shard decides, so that all shards decide alike. Throws kInvalidArgument for every reason to refuse a parameter,
// except its memory and strides.
ParamSpec make_spec(const GroupSpec& group, std::span<const int64_t> sizes, DType dtype,
                    const std::optional<WholeParam>& whole = {});

}  // namespace lowtide
