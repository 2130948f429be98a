// Saves all state to a file and loads it: for one optimizer, or several that share their parameters' numbers.
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <deque>
#include <optional>

#include "optim/carried.h"
#include "optim/checkpoint.h"
#include "optim/joint_checkpoint.h"
#include "optim/async_save.h"
#include "optim/optimizer_impl.h"
#include "optim/saved_parts.h"
#include "optim/state_parts.h"

namespace lowtide {
namespace {

std::string sizes_text(const std::vector<int64_t>& sizes) {
  std::string text;
  for (const int64_t size : sizes) text += (text.empty() ? "" : ", ") + std::to_string(size);
  return text;
}

void copy_state(const Tables& tables, const StatePart& part, int64_t offset, int64_t bytes, std::byte* to,
                const std::byte* from) {
  Parameter& param = tables.at(part.param);
  const int k = static_cast<int>(part.state);
  if (param.paged)
    return tables.of(part.param)
        .residence_of(param)
        .store()
        ->copy({static_cast<int64_t>(part.param), k, part.scales}, offset, bytes, to, from);
  std::byte* const here =
      (part.scales ? reinterpret_cast<std::byte*>(param.scales[k]) : static_cast<std::byte*>(param.codes[k])) + offset;
  if (from) copy_bytes(here, from, bytes);
  if (to) copy_bytes(to, here, bytes);
}

// The rule whose states the file has: the fullest one; with a residual, which follows the states, the rule whose states
// the parameter has, or the rule in effect if it has equally many.
int rule_saved(const Parameter& param, const CheckpointParam& saved) {
  if (param.has_residual() && param.has_state) return param.state_rule;
  if (param.has_residual() && saved.states.size() == static_cast<size_t>(param.arrays(param.rule))) return param.rule;
  return param.fullest_rule();
}

Carried carried_in(const CheckpointParam& saved) {
  Carried numbers;
  std::ranges::copy(saved.carried, numbers.of);
  return numbers;
}

bool is_codec(const std::string& name) {
  const std::vector<CodecInfo>& all = codecs();
  return std::any_of(all.begin(), all.end(), [&](const CodecInfo& each) { return name == each.name; });
}

void check_fits(const Tables& tables, const Checkpoint& saved) {
  const char* const mine = tables.rule();
  LT_REQUIRE(saved.rule == mine, "got a checkpoint of '%s', wanted one of '%s'", saved.rule.c_str(), mine);
  LT_REQUIRE(saved.params.size() == tables.params(), "got a checkpoint of %zu parameters, wanted %zu",
             saved.params.size(), tables.params());
  std::optional<Carried> estimate;  // that all parameters share
  for (size_t i = 0; i < tables.params(); ++i) {
    const CheckpointParam& got = saved.params[i];
    const CheckpointParam wanted = describe(tables.at(i), rule_saved(tables.at(i), got));
    LT_REQUIRE(got.sizes == wanted.sizes, "parameter %zu has sizes (%s) in the checkpoint, wanted (%s)", i,
               sizes_text(got.sizes).c_str(), sizes_text(wanted.sizes).c_str());
    LT_REQUIRE(got.steps <= kMostSteps, "parameter %zu has taken %lld steps in the checkpoint, wanted 2^53 at most", i,
               ll(got.steps));
    LT_REQUIRE(got.carried.size() == wanted.carried.size(),
               "parameter %zu has %zu carried numbers in the checkpoint, wanted %zu%s", i, got.carried.size(),
               wanted.carried.size(),
               got.carried.size() + wanted.carried.size() == 1  // NAdam's product
                   ? ": build the optimizer with the nesterov of the saved one"
                   : "");
    const Carried numbers = carried_in(got);
    Carried checked = numbers;
    if (!numbers.known()) checked.of[0] = 0;  // the others are still to be checked
    check_carried(tables.at(i).rule, checked, "parameter " + std::to_string(i) + " in the checkpoint");
    if (numbers.known() && rule_info(tables.at(i).rule).sums) {
      if (!estimate) estimate = numbers;
      LT_REQUIRE(numbers == *estimate,
                 "parameter %zu has another estimate in the checkpoint than one before it, wanted one for all", i);
    }
    if (got.states.empty()) continue;
    LT_REQUIRE(is_codec(got.codec),
               "parameter %zu has '%s' state in the checkpoint, which this version does not have: load it in one that "
               "has it, and carry the state over by torch_state_dict()",
               i, got.codec.c_str());
    LT_REQUIRE(got.codec == wanted.codec && got.block == wanted.block,
               "parameter %zu has '%s' state in the checkpoint, wanted '%s': build the optimizer with the state and "
               "min_quantized_numel of the saved one",
               i, got.codec.c_str(), wanted.codec.c_str());
    LT_REQUIRE(got.states.size() == wanted.states.size(), "parameter %zu has %zu states in the checkpoint, wanted %zu",
               i, got.states.size(), wanted.states.size());
    for (size_t k = 0; k < wanted.states.size(); ++k)
      LT_REQUIRE(got.states[k].name == wanted.states[k].name && got.states[k].is_signed == wanted.states[k].is_signed &&
                     got.states[k].code_bytes == wanted.states[k].code_bytes &&
                     got.states[k].scale_bytes == wanted.states[k].scale_bytes,
                 "state %zu of parameter %zu has another name, sign or size in the checkpoint", k, i);
  }
}

// Bytes of each float in a part of a file; 0 for codes, or a residual's bits.
size_t float_bytes(const CheckpointParam& param, const StatePart& part) {
  if (part.scales) return sizeof(float);
  if (param.states[part.state].name == kResidual) return 0;
  return param.codec == "fp32" ? sizeof(float) : param.codec == "bf16" ? 2 : 0;
}

// Refuses floats that would silently spread through weights, as for a state dict: values that are not finite, and
// negative numbers in a scale or an unsigned state. Pieces hold whole floats.
void check_floats(const Checkpoint& saved, const StatePart& part, const std::byte* from, int64_t bytes) {
  const CheckpointParam& param = saved.params[part.param];
  const CheckpointState& state = param.states[part.state];
  const size_t size = float_bytes(param, part), count = size ? static_cast<size_t>(bytes) / size : 0;
  const bool may_be_negative = state.is_signed && !part.scales;
  for (size_t i = 0; i < count; ++i) {
    uint32_t bits = 0;  // bf16: the upper half of a float's
    std::memcpy(reinterpret_cast<std::byte*>(&bits) + (4 - size), from + i * size, size);
    const float value = std::bit_cast<float>(bits);
    LT_REQUIRE(std::isfinite(value) && (value >= 0 || may_be_negative),
               "state '%s' of parameter %zu has %s of %g in the checkpoint, wanted finite ones%s", state.name.c_str(),
               part.param, part.scales ? "a scale" : "a value", static_cast<double>(value),
               may_be_negative ? "" : ", none below 0");
  }
}

void clear_state(ParamTable& table, int64_t param, int k) {
  for_each_part(table, param, k, true, [&](const CodecItem& item, int64_t, int64_t elements) {
    const StateFormat format = format_of_array(table, param, k);
    std::memset(item.codes, format.zero, static_cast<size_t>(format.code_bytes(elements)));
    if (item.scales) std::memset(item.scales, 0, static_cast<size_t>(format.scale_bytes(item.blocks)));
  });
}

// Once the file's state is in place, sets its counts; parameters without state in the file lose theirs.
void commit(const Tables& tables, const Checkpoint& saved) {
  for (size_t i = 0; i < tables.params(); ++i) {
    Parameter& param = tables.at(i);
    const bool empty = saved.params[i].states.empty();
    param.steps = saved.params[i].steps;
    param.carried = carried_in(saved.params[i]);
    for (Progress& piece : param.progress) piece.behind = 0;
    const int arrays = empty && param.has_state ? param.arrays(param.state_rule) : 0;
    for (int k = 0; k < arrays; ++k) clear_state(tables.of(i), static_cast<int64_t>(i), k);
    param.set_uninitialized(empty);
  }
  for (size_t i = 0; i < tables.params(); ++i) tables.at(i).partially_written = 0;
}

// Saves run one after another: waits for the previous one, and throws its failure if nobody has seen it.
void wait_for_save(const ParamTable& table) {
  if (!table.saving) return;
  table.saving->before_any_change();  // inside a call, only this thread can read state
  table.saving->finish();
  table.saving->raise_unraised();
}

void save_tables(const Tables& tables, const std::string& path, const std::string& metadata) {
  for (ParamTable* const table : tables.all()) wait_for_save(*table);
  for (ParamTable* const table : tables.all()) table->bring_to_ram();
  save_checkpoint(tables.env(), path, describe(tables, metadata),
                  [&](const StatePart& part, int64_t offset, std::byte* to, int64_t bytes) {
                    copy_state(tables, part, offset, bytes, to, nullptr);
                  });
  count_as_saved(tables);
}

void refuse_load(const ParamTable& table) {
  LT_REQUIRE(!table.saving || table.saving->done(),
             "got a file to load while a save of this optimizer to '%s' runs, wanted it after the save: call wait() of "
             "the save's handle first",
             table.saving->path().c_str());
}

std::shared_ptr<AsyncSave> save_tables_async(const Tables& tables, const std::string& path, const std::string& metadata,
                                             int64_t copy_bytes) {
  for (ParamTable* const table : tables.all()) wait_for_save(*table);
  for (ParamTable* const table : tables.all()) table->onload();
  std::shared_ptr<AsyncSave> save = AsyncSave::begin(tables, path, metadata, copy_bytes);
  for (ParamTable* const table : tables.all()) table->saving = save;
  count_as_saved(tables);
  return save;
}

std::string load_tables(const Tables& tables, const std::string& path) {
  for (ParamTable* const table : tables.all()) refuse_load(*table);
  std::deque<StateChange> changes;
  for (ParamTable* const table : tables.all()) changes.emplace_back(*table);
  const CheckpointFile file(tables.env(), path);
  const Checkpoint& saved = file.contents();
  check_fits(tables, saved);
  const auto check = [&](const StatePart& part, int64_t, const std::byte* from, int64_t bytes) {
    if (tables.of(part.param).nonfinite != NonFinite::kPropagate) check_floats(saved, part, from, bytes);
  };
  file.load(check);  // also checks all checksums, before anything changes
  for (size_t i = 0; i < tables.params(); ++i)
    if (!saved.params[i].states.empty()) tables.of(i).allocate_states(i, rule_saved(tables.at(i), saved.params[i]));
  std::string metadata = saved.metadata;
  bool begun = false;
  const auto begin = [&] {  // until all is in place, no step may use a part of it
    for (size_t i = 0; i < tables.params(); ++i) {
      Parameter& param = tables.at(i);
      param.partially_written = param.has_state ? kAllStates : 0;
    }
    begun = true;
  };
  file.load([&](const StatePart& part, int64_t offset, const std::byte* from, int64_t bytes) {
    if (!begun) begin();
    copy_state(tables, part, offset, bytes, nullptr, from);
  });
  if (!begun) begin();
  commit(tables, saved);
  for (const StateChange& change : changes) change.check_written();
  return metadata;
}

void begin_calls(std::span<Optimizer* const> all, std::deque<OptimizerEnv::Call>& calls) {
  for (Optimizer* const each : all) {
    auto& impl = OptimizerEnv::impl(*each);
    calls.emplace_back(impl);
    if (impl.on_device) impl.on_device->resolve_and_raise();
  }
}

Tables tables_of(std::span<Optimizer* const> all, std::span<const int> owner) {
  LT_REQUIRE(!all.empty(), "got no optimizer, wanted one or more");
  std::vector<ParamTable*> tables;
  for (Optimizer* const each : all) tables.push_back(&OptimizerEnv::impl(*each).table);
  for (const ParamTable* const table : tables)
    LT_REQUIRE(table->params.size() == owner.size() && table->rule == tables.front()->rule,
               "got an optimizer of '%s' with %zu parameters, wanted '%s' with %zu like the others",
               rule_info(table->rule).name, table->params.size(), rule_info(tables.front()->rule).name, owner.size());
  for (const int of : owner)
    LT_REQUIRE(of >= 0 && static_cast<size_t>(of) < all.size(), "got optimizer %d, wanted one of %zu", of, all.size());
  return {std::move(tables), {owner.begin(), owner.end()}};
}

}  // namespace

void Optimizer::save(const std::string& path, const std::string& metadata) const {
  const Impl::Call call(*impl_);
  if (impl_->on_device) impl_->on_device->resolve_and_raise();
  save_tables(Tables(impl_->table), path, metadata);
}

SaveHandle Optimizer::save_async(const std::string& path, const std::string& metadata, int64_t copy_bytes) const {
  const Impl::Call call(*impl_);
  if (impl_->on_device) impl_->on_device->resolve_and_raise();
  return SaveHandle(save_tables_async(Tables(impl_->table), path, metadata, copy_bytes));
}

SaveHandle::SaveHandle(std::shared_ptr<AsyncSave> save) : save_(std::move(save)) {}
bool SaveHandle::done() const { return save_->done(); }
bool SaveHandle::wait(double seconds) const { return save_->wait(seconds); }
int64_t SaveHandle::copied_bytes() const { return save_->copied_bytes(); }
int64_t SaveHandle::most_kept_bytes() const { return save_->most_kept_bytes(); }

void finish_saves() { running_saves::finish_all(); }

std::string Optimizer::load(const std::string& path) {
  const Impl::StateCall call(*impl_);
  return load_tables(Tables(impl_->table), path);
}

void save_together(std::span<Optimizer* const> all, std::span<const int> owner, const std::string& path,
                   const std::string& metadata) {
  const Tables tables = tables_of(all, owner);
  std::deque<OptimizerEnv::Call> calls;
  begin_calls(all, calls);
  save_tables(tables, path, metadata);
}

SaveHandle save_together_async(std::span<Optimizer* const> all, std::span<const int> owner, const std::string& path,
                               const std::string& metadata, int64_t copy_bytes) {
  const Tables tables = tables_of(all, owner);
  std::deque<OptimizerEnv::Call> calls;
  begin_calls(all, calls);
  return SaveHandle(save_tables_async(tables, path, metadata, copy_bytes));
}

std::string load_together(std::span<Optimizer* const> all, std::span<const int> owner, const std::string& path) {
  const Tables tables = tables_of(all, owner);
  std::deque<OptimizerEnv::StateCall> calls;
  for (Optimizer* const each : all) calls.emplace_back(OptimizerEnv::impl(*each));
  return load_tables(tables, path);
}

std::string checkpoint_metadata(const std::string& path) {
  return CheckpointFile(system_env(), path).contents().metadata;
}

}  // namespace lowtide
