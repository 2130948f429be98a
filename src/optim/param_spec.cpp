#include "optim/param_spec.h"

#include <algorithm>

#include "core/error.h"
#include "optim/checkpoint.h"
#include "optim/hyper.h"

namespace lowtide {
namespace {

constexpr int kFp32 = 0;

const char* name_of(int rule) { return rule_info(rule).name; }

// In 4 bits, steps of long signed averages are lost.
void check_averages(int rule, int codec, const Hyper& hyper) {
  constexpr double kLongest = 0.9, kLate = 0x1p53;  // after all schedules
  const CodecInfo& as = codec_info(codec);
  if (as.format[1].code_bits > 4) return;
  const char* const reason = rule_info(rule).too_coarse;
  LT_REQUIRE(!reason, "got state '%s' for %s, wanted one of 8 bits or more ('dynamic8'): %s", as.name, name_of(rule),
             reason);
  const RuleInfo& of = rule_info(effective_rule(rule, hyper));
  const RuleInput late = rule_input(hyper, static_cast<int64_t>(kLate), false);
  for (int k = 0; k < of.states; ++k)
    LT_REQUIRE(!((of.signed_mask >> k) & 1) || of.decay(late, k) <= kLongest,
               "got state '%s' for %s with a beta of %.9g for its %s, wanted %g at most: steps of a longer average are "
               "lost in 4 bits; lower it, or take state 'dynamic8'",
               as.name, name_of(rule), of.decay(late, k), of.state_names[static_cast<size_t>(k)], kLongest);
}

size_t budget_of(const GroupOptions& options, std::span<const GroupSpec> before, size_t budgets) {
  const int shared = options.budget_of;
  LT_REQUIRE(shared == -1 || !options.memory, "got a budget and budget_of=%d, wanted one of them", shared);
  LT_REQUIRE(shared >= -1 && shared < static_cast<int>(before.size()),
             "got budget_of=%d in group %zu, wanted an earlier group, or -1", shared, before.size());
  if (options.memory) return budgets;
  return shared == -1 ? 0 : before[static_cast<size_t>(shared)].budget;
}

// The layout that determines a shard's codec.
Layout whole_layout(std::span<const int64_t> shard, const WholeParam& whole) {
  const size_t dims = shard.size();
  LT_REQUIRE(whole.sizes.size() == dims, "got a shard of %zu dimensions for a parameter of %zu, wanted the same number",
             dims, whole.sizes.size());
  for (size_t d = 0; d < dims; ++d) {
    const bool same = whole.sizes[d] == shard[d];
    const bool piece = dims == 1 && !whole.offsets.empty();  // its blocks begin with it
    LT_REQUIRE(
        same || (shard[d] < whole.sizes[d] && (whole.rows_cut || (d == 0 && dims > 1) || piece)),
        "got a shard of size %lld in dimension %zu, of a parameter of size %lld; wanted whole rows, rows_cut, or the "
        "offset in a vector",
        ll(shard[d]), d, ll(whole.sizes[d]));
  }
  LT_REQUIRE(whole.offsets.empty() || whole.offsets.size() == dims,
             "got %zu offsets of a shard of %zu dimensions, wanted one each or none", whole.offsets.size(), dims);
  for (size_t d = 0; d < whole.offsets.size(); ++d)
    LT_REQUIRE(whole.offsets[d] >= 0 && whole.offsets[d] <= whole.sizes[d] - shard[d],
               "got a shard of size %lld at %lld in dimension %zu, wanted it within the parameter's size of %lld",
               ll(shard[d]), ll(whole.offsets[d]), d, ll(whole.sizes[d]));
  return Layout::make(whole.sizes, {});
}

// True if a shard's elements of a row are not contiguous in the whole's row.
bool row_is_scattered(std::span<const int64_t> shard, const WholeParam& whole) {
  for (size_t d = 2; d < shard.size(); ++d)
    if (shard[d] != whole.sizes[d]) return true;
  return false;
}

// own: the shard's layout. layout: the whole's.
int codec_for(const GroupSpec& group, std::span<const int64_t> sizes, const Layout& own, const Layout& layout,
              const WholeParam* whole) {
  const CodecInfo* wanted = &codec_info(group.codec);
  int codec = group.codec;
  if (wanted->has_pairs() && (layout.row_length % 2 != 0 || own.row_length % 2 != 0))
    wanted = &codec_info(codec = find_codec("dynamic8"));
  const auto bytes = [&](const StateFormat& format) {
    return format.code_bytes(layout.numel) + format.scale_bytes(layout.blocks(kBlockElements));
  };
  const int64_t plain = bytes(codec_info(kFp32).format[0]);
  if (layout.numel < group.min_quantized_numel || bytes(wanted->format[0]) >= plain ||
      bytes(wanted->format[1]) >= plain)
    return kFp32;
  return whole && whole->rows_cut && (wanted->scaled || row_is_scattered(sizes, *whole)) ? kFp32 : codec;
}

// The position of a shard in `whole`, which whole_layout() has accepted.
ShardOrigin origin_of(std::span<const int64_t> sizes, const WholeParam& whole, const Layout& layout, bool scaled) {
  ShardOrigin origin;
  origin.row_stride = blocks_per_row(layout.row_length, kBlockElements) * kBlockElements;
  if (whole.offsets.empty() || layout.numel == 0) return origin;
  if (sizes.size() < 2) {
    origin.first_column = sizes.empty() ? 0 : whole.offsets[0];
    if (scaled) origin.first_column -= origin.first_column % kBlockElements;  // a piece's blocks may cross the whole's
  } else {
    origin.first_row = whole.offsets[0];
    origin.first_column = whole.offsets[1] * (layout.row_length / whole.sizes[1]);
  }
  return origin;
}

}  // namespace

void check_rounding(int codec, RoundingMode mode) {
  const CodecInfo& of = codec_info(codec);
  LT_REQUIRE(mode != RoundingMode::kNearest || !(of.needs_random[0] || of.needs_random[1]),
             "got rounding 'nearest' with state '%s', wanted 'auto' or 'stochastic': rounded to nearest, averages in "
             "it freeze far from their true values",
             of.name);
}

void check_param_dtype(DType dtype) {
  LT_REQUIRE(dtype == DType::kF32 || dtype == DType::kBF16 || dtype == DType::kF16,
             "got a parameter of element type %d, wanted float32, bfloat16 or float16", static_cast<int>(dtype));
}

GroupSpec make_group(const GroupOptions& options, int rule, std::span<const GroupSpec> before, size_t budgets) {
  GroupSpec out;
  out.hyper = options.hyper;
  out.rule = options.rule.empty() ? rule : find_rule(options.rule);
  check_hyper(out.rule, options.hyper);
  out.codec = find_codec(options.state);
  out.rounding = find_rounding(options.rounding);
  check_rounding(out.codec, out.rounding);
  out.min_quantized_numel = options.min_quantized_numel;
  LT_REQUIRE(options.min_quantized_numel >= 0, "got min_quantized_numel=%lld, wanted 0 or more",
             ll(options.min_quantized_numel));
  out.master = find_master(options.master);
  out.budget = budget_of(options, before, budgets);
  return out;
}

void check_change(const GroupSpec& group, const Hyper& to, bool has_params, bool in_codec) {
  check_hyper(group.rule, to);
  if (in_codec) check_averages(group.rule, group.codec, to);
  const int was = effective_rule(group.rule, group.hyper);
  const int now = effective_rule(group.rule, to);
  // SGD's and LARS's only state depends on momentum and stays; other rules would lose states.
  LT_REQUIRE(was == now || !has_params || state_comes_and_goes(group.rule),
             "got hyper-parameters that make %s out of %s, wanted momentum (0 or not), nesterov, amsgrad and centered "
             "as they were when the group got its parameters: they decide which states exist",
             name_of(now), name_of(was));
}

ParamSpec make_spec(const GroupSpec& group, std::span<const int64_t> sizes, DType dtype,
                    const std::optional<WholeParam>& whole) {
  check_param_dtype(dtype);
  ParamSpec out;
  out.shape = Layout::make(sizes, {});
  out.sizes.assign(sizes.begin(), sizes.end());
  out.family = group.rule;
  out.rule = effective_rule(group.rule, group.hyper);
  LT_REQUIRE(!rule_info(out.rule).norms || !whole || (whole->sizes == out.sizes && !whole->rows_cut),
             "got a shard for %s, which needs norms of whole parameters, wanted the whole parameter: replicate it, or "
             "take a rule without norms",
             name_of(group.rule));
  const Layout of_whole = whole ? whole_layout(sizes, *whole) : out.shape;
  LT_REQUIRE(of_whole.numel <= kMostElements, "got a parameter of %lld elements, wanted 2^52 at most",
             ll(of_whole.numel));
  out.codec = codec_for(group, sizes, out.shape, of_whole, whole ? &*whole : nullptr);
  check_averages(group.rule, out.codec, group.hyper);
  out.master = master_for(group, dtype);
  if (whole) out.origin = origin_of(sizes, *whole, of_whole, codec_info(out.codec).scaled);
  return out;
}

bool ParamSpec::is_signed(int of_rule, int k) const {
  return k == states(of_rule) || ((rule_info(of_rule).signed_mask >> k) & 1) != 0;
}

StateFormat ParamSpec::format(int of_rule, int k) const {
  if (k == states(of_rule)) return {.code_bits = master_info(master).residual_bits};
  return format_of(of_rule, codec, k);
}

StateView ParamSpec::view(int of_rule, int k) const {
  const RuleInfo& of = rule_info(of_rule);
  const StateFormat as = format(of_rule, k);
  const bool residual = k == of.states;
  return {.name = residual ? kResidual : of.state_names[static_cast<size_t>(k)],
          .codec = residual ? master_info(master).name : codec_info(codec).name,
          .numel = shape.numel,
          .rows = shape.rows,
          .scales_per_row = blocks_per_row(shape.row_length, kBlockElements) * as.scales,
          .code_bits = as.code_bits,
          .block = as.scale_block()};
}

int64_t ParamSpec::scale_bytes(int of_rule, int k) const {
  return format(of_rule, k).scale_bytes(shape.blocks(kBlockElements));
}

int64_t ParamSpec::bytes(int of_rule) const {
  int64_t sum = 0;
  for (int k = 0; k < arrays(of_rule); ++k) sum += code_bytes(of_rule, k) + scale_bytes(of_rule, k);
  return sum;
}

StateShape ParamSpec::state_shape(int of_rule) const {
  StateShape out{shape.rows, shape.row_length, arrays(of_rule), {}};
  for (int k = 0; k < out.states; ++k) out.format[k] = format(of_rule, k);
  return out;
}

bool ParamSpec::norms_read_arrays() const {
  const RuleInfo& of = rule_info(rule);
  return of.sums || (of.norms && (of.norms_read_state || has_residual()));
}

uint32_t ParamSpec::make_args(const GroupSpec& group, const StepTerms& step, std::byte* args) const {
  RuleInput in = rule_input(group.hyper, step.t, step.first);
  if (step.moves != Moves::kWeights) in.lr = step.moves == Moves::kDirection ? -1 : 0, in.weight_decay = 0;
  in.error = codec_info(codec).error;
  in.norm[0] = step.norm[0], in.norm[1] = step.norm[1];
  std::copy_n(step.carried.of, kMaxCarried, in.carried);
  const uint32_t stochastic = stochastic_states(rule, codec, group.rounding, in);
  if (stochastic) in.error *= 2;  // up to a whole step between codes instead of half a step
  rule_info(rule).make_args(in, args);
  return stochastic;
}

}  // namespace lowtide
