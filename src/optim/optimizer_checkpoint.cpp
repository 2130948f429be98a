// All state to a file and back.
#include <cstring>

#include "optim/checkpoint.h"
#include "optim/optimizer_impl.h"
#include "optim/state_parts.h"

namespace lowtide {
namespace {

std::string sizes_text(const std::vector<int64_t>& sizes) {
  std::string text;
  for (const int64_t size : sizes) text += (text.empty() ? "" : ", ") + std::to_string(size);
  return text;
}

// of_rule -1: without state.
CheckpointParam describe(const Parameter& param, int of_rule) {
  const CodecInfo& codec = codec_info(param.codec);
  CheckpointParam out;
  out.sizes = param.sizes;
  out.group = param.group;
  out.steps = param.steps;
  out.codec = codec.name;
  out.block = codec.scaled ? kBlockElements : 0;
  if (of_rule < 0) return out;
  for (int k = 0; k < param.arrays(of_rule); ++k)
    out.states.push_back({param.view(of_rule, k).name, param.is_signed(of_rule, k), param.code_bytes(of_rule, k),
                          param.scale_bytes(of_rule, k)});
  return out;
}

// The state as it is now.
Checkpoint describe(const ParamTable& table, const std::string& metadata) {
  Checkpoint out;
  out.rule = rule_info(table.rule).name;
  out.metadata = metadata;
  for (size_t i = 0; i < table.params.size(); ++i) {
    const Parameter& param = table.params[i];
    table.require_whole(param, i);
    out.params.push_back(describe(param, param.has_state && !param.uninitialized ? param.state_rule : -1));
    out.params.back().name = std::to_string(i);
  }
  return out;
}

void copy_state(ParamTable& table, const StatePart& part, int64_t offset, int64_t bytes, std::byte* to,
                const std::byte* from) {
  Parameter& param = table.params[part.param];
  const int k = static_cast<int>(part.state);
  if (param.paged)
    return table.residence_of(param).store()->copy({static_cast<int64_t>(part.param), k, part.scales}, offset, bytes,
                                                   to, from);
  std::byte* const here =
      (part.scales ? reinterpret_cast<std::byte*>(param.scales[k]) : static_cast<std::byte*>(param.codes[k])) + offset;
  if (from) copy_bytes(here, from, bytes);
  if (to) copy_bytes(to, here, bytes);
}

// The rule whose states a file has: the fullest; beside a residual, which lies behind them, the one whose states the
// parameter has, or the one in effect if those are as many.
int rule_saved(const Parameter& param, const CheckpointParam& saved) {
  if (param.has_residual() && param.has_state) return param.state_rule;
  if (param.has_residual() && saved.states.size() == static_cast<size_t>(param.arrays(param.rule))) return param.rule;
  return param.fullest_rule();
}

void check_fits(const ParamTable& table, const Checkpoint& saved) {
  const char* const mine = rule_info(table.rule).name;
  LT_REQUIRE(saved.rule == mine, "got a checkpoint of '%s', wanted one of '%s'", saved.rule.c_str(), mine);
  LT_REQUIRE(saved.params.size() == table.params.size(), "got a checkpoint of %zu parameters, wanted %zu",
             saved.params.size(), table.params.size());
  for (size_t i = 0; i < table.params.size(); ++i) {
    const CheckpointParam& got = saved.params[i];
    const CheckpointParam wanted = describe(table.params[i], rule_saved(table.params[i], got));
    LT_REQUIRE(got.sizes == wanted.sizes, "parameter %zu has sizes (%s) in the checkpoint, wanted (%s)", i,
               sizes_text(got.sizes).c_str(), sizes_text(wanted.sizes).c_str());
    LT_REQUIRE(got.steps <= kMostSteps, "parameter %zu has taken %lld steps in the checkpoint, wanted 2^53 at most", i,
               ll(got.steps));
    if (got.states.empty()) continue;
    LT_REQUIRE(got.codec == wanted.codec && got.block == wanted.block,
               "parameter %zu has '%s' state in the checkpoint, wanted '%s': build the optimizer with the state and "
               "min_quantized_numel of the saved one",
               i, got.codec.c_str(), wanted.codec.c_str());
    LT_REQUIRE(got.states.size() == wanted.states.size(), "parameter %zu has %zu states in the checkpoint, wanted %zu",
               i, got.states.size(), wanted.states.size());
    for (size_t k = 0; k < wanted.states.size(); ++k)
      LT_REQUIRE(got.states[k].name == wanted.states[k].name &&
                     got.states[k].code_bytes == wanted.states[k].code_bytes &&
                     got.states[k].scale_bytes == wanted.states[k].scale_bytes,
                 "state %zu of parameter %zu has another name or size in the checkpoint", k, i);
  }
}

void clear_state(ParamTable& table, int64_t param, int k) {
  for_each_part(table, param, k, true, [&](const CodecItem& item, int64_t, int64_t elements) {
    const StateFormat format = format_of_array(table, param, k);
    std::memset(item.codes, format.zero, static_cast<size_t>(format.code_bytes(elements)));
    if (item.scales) std::memset(item.scales, 0, static_cast<size_t>(format.scale_bytes(item.blocks)));
  });
}

// The file's state is in place: so are its counts, and no parameter without state there keeps what it had.
void commit(ParamTable& table, const Checkpoint& saved) {
  for (size_t i = 0; i < table.params.size(); ++i) {
    Parameter& param = table.params[i];
    const bool empty = saved.params[i].states.empty();
    param.steps = saved.params[i].steps;
    for (Progress& piece : param.progress) piece.behind = 0;
    const int arrays = empty && param.has_state ? param.arrays(param.state_rule) : 0;
    for (int k = 0; k < arrays; ++k) clear_state(table, static_cast<int64_t>(i), k);
    param.set_uninitialized(empty);
  }
  for (Parameter& param : table.params) param.partially_written = 0;
}

}  // namespace

void Optimizer::save(const std::string& path, const std::string& metadata) const {
  const Impl::Call call(*impl_);
  ParamTable& table = impl_->table;
  if (impl_->on_device) impl_->on_device->resolve_and_raise();
  table.onload();
  save_checkpoint(table.env, path, describe(table, metadata),
                  [&](const StatePart& part, int64_t offset, std::byte* to, int64_t bytes) {
                    copy_state(table, part, offset, bytes, to, nullptr);
                  });
  // The file has one count for each parameter: what goes on here is what is loaded from it.
  for (Parameter& param : table.params)
    for (Progress& piece : param.progress) piece = {0, param.uninitialized};
}

std::string Optimizer::load(const std::string& path) {
  const Impl::StateCall call(*impl_);
  ParamTable& table = impl_->table;
  const StateChange change(table);
  const CheckpointFile file(table.env, path);
  const Checkpoint& saved = file.contents();
  check_fits(table, saved);
  file.verify();
  for (size_t i = 0; i < table.params.size(); ++i)
    if (!saved.params[i].states.empty()) table.allocate_states(i, rule_saved(table.params[i], saved.params[i]));
  std::string metadata = saved.metadata;
  bool begun = false;
  const auto begin = [&] {  // until all is in place, no step must be taken with a part of it
    for (Parameter& param : table.params) param.partially_written = param.has_state ? kAllStates : 0;
    begun = true;
  };
  file.load([&](const StatePart& part, int64_t offset, const std::byte* from, int64_t bytes) {
    if (!begun) begin();
    copy_state(table, part, offset, bytes, nullptr, from);
  });
  if (!begun) begin();
  commit(table, saved);
  change.check_written();
  return metadata;
}

std::string checkpoint_metadata(const std::string& path) {
  return CheckpointFile(system_env(), path).contents().metadata;
}

}  // namespace lowtide
