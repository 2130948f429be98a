// Where state goes and comes from: places, copies, checkpoints.
#include "optim/optimizer_impl.h"

namespace lowtide {
namespace {

std::string sizes_text(const std::vector<int64_t>& sizes) {
  std::string text;
  for (const int64_t size : sizes) text += (text.empty() ? "" : ", ") + std::to_string(size);
  return text;
}

}  // namespace

void Optimizer::Impl::place(size_t param, std::span<const Gradient> grads) {
  if (Parameter& slot = slots[param]; slot.layout.numel == 0) {  // nothing to store
    return slot.begin_state(slot.rule);
  }
  Home& home = home_of(slots[param]);
  std::vector<Parameter*> together;
  std::vector<int64_t> numbers;
  const auto add = [&](size_t i) {
    together.push_back(&slots[i]);
    numbers.push_back(static_cast<int64_t>(i));
  };
  if (!home.waits()) {
    add(param);
  } else {
    for (size_t i = 0; i < slots.size(); ++i) {
      const Parameter& slot = slots[i];
      const bool wants = slot.wants_state || (i < grads.size() && grads[i].data);
      const bool waits = !slot.has_state && wants && slot.layout.numel > 0 && &home_of(slot) == &home;
      if (i == param || waits) add(i);
    }
  }
  home.place(together, numbers);
}

Checkpoint Optimizer::Impl::describe(const std::string& metadata) const {
  Checkpoint out;
  out.rule = rule_info(rule).name;
  out.metadata = metadata;
  for (size_t i = 0; i < slots.size(); ++i) {
    const Parameter& slot = slots[i];
    require_whole(slot, static_cast<int64_t>(i));
    CheckpointParam param = describe(slot, slot.has_state && !slot.uninitialized ? slot.state_rule : -1);
    param.name = std::to_string(i);
    out.params.push_back(std::move(param));
  }
  return out;
}

CheckpointParam Optimizer::Impl::describe(const Parameter& slot, int of_rule) const {
  const CodecInfo& codec = codec_info(slot.codec);
  CheckpointParam param;
  param.sizes = slot.sizes;
  param.group = slot.group;
  param.steps = slot.steps;
  param.codec = codec.name;
  param.block = codec.scaled ? kBlockElements : 0;
  if (of_rule < 0) return param;
  for (int k = 0; k < slot.arrays(of_rule); ++k)
    param.states.push_back({slot.view(of_rule, k).name, slot.is_signed(of_rule, k), slot.code_bytes(of_rule, k),
                            slot.scale_bytes(of_rule, k)});
  return param;
}

void Optimizer::Impl::catch_up() {
  for (Parameter& slot : slots)
    for (Progress& piece : slot.progress) {
      piece.behind = 0;
      piece.uninitialized = slot.uninitialized;
    }
}

void Optimizer::Impl::forget_unwritten() {
  for (const std::unique_ptr<Home>& home : homes)
    if (home->store()) home->store()->forget_unwritten();
}

void Optimizer::Impl::check_written() {
  for (const std::unique_ptr<Home>& home : homes)
    if (home->store()) home->store()->check_written();
}

void Optimizer::Impl::copy_state(const StatePart& part, int64_t offset, int64_t bytes, std::byte* to,
                                 const std::byte* from) {
  Parameter& slot = slots[part.param];
  const int k = static_cast<int>(part.state);
  if (slot.paged)
    return home_of(slot).store()->copy({static_cast<int64_t>(part.param), k, part.scales}, offset, bytes, to, from);
  std::byte* const here =
      (part.scales ? reinterpret_cast<std::byte*>(slot.scales[k]) : static_cast<std::byte*>(slot.codes[k])) + offset;
  if (from) copy_bytes(here, from, bytes);
  if (to) copy_bytes(to, here, bytes);
}

int Optimizer::Impl::rule_saved(const Parameter& slot, const CheckpointParam& saved) const {
  if (slot.has_residual() && slot.has_state) return slot.state_rule;
  if (slot.has_residual() && saved.states.size() == static_cast<size_t>(slot.arrays(slot.rule))) return slot.rule;
  return slot.fullest_rule();
}

void Optimizer::Impl::check_fits(const Checkpoint& saved) const {
  const RuleInfo& mine = rule_info(rule);
  LT_REQUIRE(saved.rule == mine.name, "got a checkpoint of '%s', wanted one of '%s'", saved.rule.c_str(), mine.name);
  LT_REQUIRE(saved.params.size() == slots.size(), "got a checkpoint of %zu parameters, wanted %zu", saved.params.size(),
             slots.size());
  for (size_t i = 0; i < slots.size(); ++i) {
    const CheckpointParam& got = saved.params[i];
    const CheckpointParam wanted = describe(slots[i], rule_saved(slots[i], got));
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

void Optimizer::Impl::allocate_for(const Checkpoint& saved) {
  for (size_t i = 0; i < slots.size(); ++i)
    if (!saved.params[i].states.empty()) allocate_states(i, rule_saved(slots[i], saved.params[i]));
}

void Optimizer::Impl::set_steps_of(const Checkpoint& saved) {
  for (size_t i = 0; i < slots.size(); ++i) {
    Parameter& slot = slots[i];
    slot.steps = saved.params[i].steps;
    for (Progress& piece : slot.progress) piece.behind = 0;
    if (!saved.params[i].states.empty()) {
      slot.set_uninitialized(false);
      continue;
    }
    // Nothing was saved: what this optimizer may hold is of another past.
    const int states = slot.has_state ? slot.arrays(slot.state_rule) : 0;
    for (int k = 0; k < states; ++k) clear_state(static_cast<int64_t>(i), k);
    slot.set_uninitialized(true);
  }
  for (Parameter& slot : slots) slot.partially_written = 0;
}

void Optimizer::Impl::clear_state(int64_t param, int k) {
  for_each_part(param, k, true, [&](const CodecItem& item, int64_t, int64_t elements) {
    const StateFormat format = format_of_array(param, k);
    std::memset(item.codes, format.zero, static_cast<size_t>(format.code_bytes(elements)));
    if (item.scales) std::memset(item.scales, 0, static_cast<size_t>(format.scale_bytes(item.blocks)));
  });
}

void Optimizer::Impl::allocate_states(size_t param, int of_rule) {
  Parameter& slot = slots[param];
  const auto states = [](int of) { return rule_info(of).states; };
  // A residual keeps to the states that it lies with.
  if (slot.has_state && (slot.has_residual() || states(slot.state_rule) >= states(of_rule))) return;
  const int effective = slot.rule;
  const bool had = std::exchange(slot.has_state, false);
  slot.rule = of_rule;
  try {
    place(param, {});
  } catch (...) {
    slot.rule = effective;
    slot.has_state = had;
    throw;
  }
  slot.rule = effective;
}

}  // namespace lowtide
