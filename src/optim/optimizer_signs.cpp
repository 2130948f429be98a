// Steps whose result is signs, for a vote with other optimizers, and steps by what the vote gives.
#include "core/sizes.h"
#include "optim/optimizer_impl.h"

namespace lowtide {

int64_t sign_offset(const ParamTable& table, size_t param) {
  int64_t sum = 0;
  for (size_t i = 0; i < param; ++i) sum += round_up(table.params[i].layout.numel, kSignAlignment);
  return sum;
}

void check_signs(const ParamTable& table, const SignBuffer& signs, bool presence, const void* stream) {
  const int64_t count = sign_offset(table, table.params.size());
  LT_REQUIRE(count == 0 || signs.bits, "got no memory for the bits of %lld signs", ll(count));
  LT_REQUIRE(count == 0 || !presence || signs.presence, "got no memory for the presence of %lld signs", ll(count));
  LT_REQUIRE(!stream || table.on.device, "got a stream for CPU parameters, wanted nullptr");
}

int64_t Optimizer::sign_count() const { return lowtide::sign_offset(impl_->table, impl_->table.params.size()); }

int64_t Optimizer::sign_offset(int64_t param) const {
  impl_->table.at(param);
  return lowtide::sign_offset(impl_->table, static_cast<size_t>(param));
}

StepResult Optimizer::ballots(std::span<const Gradient> grads, const SignBuffer& out, bool zero_is_plus,
                              const StepOptions& options) {
  const Impl::Call call(*impl_);
  const Ballots ballots{out, zero_is_plus};
  if (impl_->on_device) return impl_->on_device->step(grads, options, &ballots);
  StepPlan plan(impl_->table, impl_->buffers, grads, options, &ballots);
  plan.gather();
  return plan.take();
}

void Optimizer::apply_signs(const SignBuffer& signs, void* stream) {
  const Impl::Call call(*impl_);
  ParamTable& table = impl_->table;
  check_signs(table, signs, false, stream);
  std::vector<ApplyItem> moves;
  int64_t first = 0;
  for (const Parameter& param : table.params) {
    if (param.layout.numel == 0) continue;
    const Hyper& h = table.group_of(param).hyper;
    moves.push_back({param.dtype, first, param.data, &param.layout, signs.bits, signs.zeros, signs.presence,
                     static_cast<float>(h.lr), static_cast<float>(h.lr * h.weight_decay)});
    first += round_up(param.layout.numel, kSignAlignment);
  }
  // Parameters that share memory move one after another.
  const size_t at_once = table.overlap() ? 1 : std::max<size_t>(moves.size(), 1);
  for (size_t i = 0; i < moves.size(); i += at_once)
    table.on.at_params.apply_signs(std::span(moves).subspan(i, at_once), table.on.threads, stream);
  if (impl_->on_device) impl_->on_device->note_queued(stream);
}

}  // namespace lowtide
