// Describes and copies single states, wherever they live.
#include "optim/optimizer_impl.h"
#include "optim/state_parts.h"

namespace lowtide {

std::vector<StateView> Optimizer::state(int64_t param) const {
  const Parameter& of = impl_->table.at(param);
  std::vector<StateView> views;
  if (!of.has_state) return views;
  for (int k = 0; k < of.arrays(of.state_rule); ++k) {
    StateView& view = views.emplace_back(of.view(of.state_rule, k));
    view.codes = of.codes[k];
    view.scales = of.scales[k];
  }
  return views;
}

std::vector<StateInfo> Optimizer::states_of(int64_t param) const {
  const Parameter& of = impl_->table.at(param);
  const int rule = of.fullest_rule();
  std::vector<StateInfo> all;
  for (int k = 0; k < of.states(rule); ++k) all.push_back({of.view(rule, k).name, of.is_signed(rule, k)});
  return all;
}

bool Optimizer::has_state(int64_t param) const { return impl_->table.at(param).has_state; }

const char* Optimizer::state_codec(int64_t param) const { return codec_info(impl_->table.at(param).codec).name; }

void Optimizer::allocate_state(int64_t param) {
  const Impl::StateCall call(*impl_);
  const Parameter& of = impl_->table.at(param);
  impl_->table.allocate_states(static_cast<size_t>(param), of.has_residual() ? of.rule : of.fullest_rule());
}

int64_t Optimizer::steps(int64_t param) const {
  const Impl::Inside inside(*impl_);
  impl_->resolve();
  return impl_->table.at(param).steps;
}

int64_t Optimizer::skipped_steps() const { return impl_->table.skipped_steps; }

const int64_t* Optimizer::steps_address(int64_t param) const { return &impl_->table.at(param).steps; }

void Optimizer::set_steps(int64_t param, int64_t steps) {
  const Impl::Call call(*impl_);
  impl_->resolve();
  LT_REQUIRE(steps >= 0 && steps <= kMostSteps, "got %lld steps, wanted 0 to 2^53", ll(steps));
  Parameter& of = impl_->table.at(param);
  of.steps = steps;
  of.carried = {};
  of.set_uninitialized(steps == 0);
  for (Progress& piece : of.progress) piece.behind = 0;
}

void Optimizer::export_state(int64_t param, int k, float* out) const {
  const Impl::ReadCall call(*impl_);
  require_decoded(impl_->table, param, k);
  for_each_part(impl_->table, param, k, false, [&](CodecItem item, int64_t first, int64_t) {
    item.values = out + first;
    impl_->table.on.host->decode(item, nullptr);
  });
}

void Optimizer::import_state(int64_t param, int k, const float* in) {
  const Impl::StateCall call(*impl_);
  require_decoded(impl_->table, param, k);
  const StateChange change(impl_->table);
  for_each_part(impl_->table, param, k, true, [&](CodecItem item, int64_t first, int64_t) {
    item.values = const_cast<float*>(in) + first;  // encode only reads it
    impl_->table.on.host->encode(item, nullptr);
  });
  impl_->table.at(param).set_uninitialized(false);
  change.check_written();
}

void Optimizer::read_state(int64_t param, int k, void* codes, float* scales) const {
  const Impl::ReadCall call(*impl_);
  for_each_part(impl_->table, param, k, false, [&](const CodecItem& item, int64_t first, int64_t elements) {
    const StateFormat format = format_of_array(impl_->table, param, k);
    copy_bytes(static_cast<std::byte*>(codes) + format.code_bytes(first), item.codes, format.code_bytes(elements));
    if (item.scales && scales)
      copy_bytes(scales + item.first_block * format.scales, item.scales, format.scale_bytes(item.blocks));
  });
}

void Optimizer::write_state(int64_t param, int k, const void* codes, const float* scales) {
  const Impl::StateCall call(*impl_);
  const StateChange change(impl_->table);
  for_each_part(impl_->table, param, k, true, [&](const CodecItem& item, int64_t first, int64_t elements) {
    const StateFormat format = format_of_array(impl_->table, param, k);
    copy_bytes(item.codes, static_cast<const std::byte*>(codes) + format.code_bytes(first),
               format.code_bytes(elements));
    if (item.scales && scales)
      copy_bytes(item.scales, scales + item.first_block * format.scales, format.scale_bytes(item.blocks));
  });
  impl_->table.at(param).set_uninitialized(false);
  change.check_written();
}

}  // namespace lowtide
