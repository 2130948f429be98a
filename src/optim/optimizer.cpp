#include "lowtide/optimizer.h"

#include <algorithm>

#include "backend/cpu/cpu_backend.h"
#include "optim/gradient_norm.h"
#include "optim/optimizer_impl.h"

namespace lowtide {
namespace {

// Adds a store's field to the total; keeps the first text.
template <class Number>
void add_field(Number part, Number& sum) {
  sum += part;
}
void add_field(const std::string& part, std::string& first) {
  if (first.empty()) first = part;
}

}  // namespace

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

Optimizer::Optimizer(const OptimizerOptions& options) : impl_(std::make_unique<Impl>(options, system_env(), nullptr)) {}
Optimizer::Optimizer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Optimizer OptimizerEnv::make(const OptimizerOptions& options, Env& env, std::unique_ptr<Backend> device) {
  return Optimizer(std::make_unique<Optimizer::Impl>(options, env, std::move(device)));
}
Optimizer::~Optimizer() = default;
Optimizer::Optimizer(Optimizer&&) noexcept = default;
Optimizer& Optimizer::operator=(Optimizer&&) noexcept = default;

int Optimizer::add_group(const GroupOptions& options) {
  const Impl::Call call(*impl_);
  return impl_->table.add_group(options);
}

void Optimizer::set_hyper(int group, const Hyper& hyper) {
  const Impl::Call call(*impl_);
  impl_->table.set_hyper(group, hyper);
}

void Optimizer::set_rounding(int group, const std::string& rounding) {
  const Impl::Call call(*impl_);
  const RoundingMode mode = find_rounding(rounding);
  check_rounding(impl_->table.group_at(group).codec, mode);
  impl_->table.groups[static_cast<size_t>(group)].rounding = mode;
}

void Optimizer::set_seed(uint64_t seed) {
  const Impl::Call call(*impl_);
  impl_->table.seed = seed;
}

const Hyper& Optimizer::hyper(int group) const { return impl_->table.group_at(group).hyper; }

int64_t Optimizer::add_param(int group, const TensorView& param, bool with_state,
                             const std::optional<WholeParam>& whole) {
  const Impl::Call call(*impl_);
  return impl_->table.add_param(group, param, with_state, whole);
}

void Optimizer::place_states() {
  const Impl::ReadCall call(*impl_);
  impl_->table.place_waiting();
}

void Optimizer::rebind(int64_t param, const TensorView& view) {
  const Impl::Call call(*impl_);
  impl_->table.rebind(param, view);
}

int64_t Optimizer::param_count() const { return static_cast<int64_t>(impl_->table.params.size()); }

StepResult Optimizer::check(std::span<const Gradient> grads, const StepOptions& options) {
  const Impl::Call call(*impl_);
  if (impl_->on_device) impl_->on_device->resolve_and_raise();
  const StepOptions own = without_clip(options);
  StepPlan plan(impl_->table, impl_->buffers, grads, own);
  if (impl_->on_device) impl_->on_device->announce(options);
  plan.gather();
  const int64_t bad = plan.first_bad();
  return bad < 0 ? StepResult{} : plan.refuse(bad);
}

StepResult Optimizer::step(std::span<const Gradient> grads, const StepOptions& options) {
  const Impl::Call call(*impl_);
  if (impl_->on_device) return impl_->on_device->step(grads, options, nullptr);
  const StepOptions own = without_clip(options);
  StepPlan plan(impl_->table, impl_->buffers, grads, own);
  plan.gather();
  return plan.take();
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
  const StepOptions own = without_clip(options);
  StepPlan plan(impl_->table, impl_->buffers, grads, own, &ballots);
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

StepResult Optimizer::prepare_replay(const StepOptions& options) {
  const Impl::Call call(*impl_);
  LT_REQUIRE(impl_->on_device,
             "got a replay to prepare and no recorded step, wanted a step on a queue that is being captured first");
  return impl_->on_device->prepare_replay(options);
}

int64_t Optimizer::prefetch(int64_t bytes, void* stream) {
  const Impl::Call call(*impl_);
  LT_REQUIRE(bytes >= 0, "got %lld bytes to prefetch, wanted 0 or more", ll(bytes));
  LT_REQUIRE(!stream || impl_->on_device, "got a stream for CPU parameters, wanted nullptr");
  return impl_->on_device ? impl_->on_device->prefetch(bytes, stream) : 0;
}

int64_t Optimizer::demote(int64_t bytes) {
  const Impl::Call call(*impl_);
  LT_REQUIRE(bytes >= 0, "got %lld bytes to demote, wanted 0 or more", ll(bytes));
  return impl_->on_device ? impl_->on_device->demote(bytes) : 0;
}

void Optimizer::synchronize() {
  const Impl::Call call(*impl_);
  if (impl_->on_device) impl_->on_device->synchronize();
}

void Optimizer::offload() {
  const Impl::Call call(*impl_);
  impl_->resolve();
  for (const auto& residence : impl_->table.residences) residence->check_offload();  // check all before the first moves
  if (impl_->table.saving) impl_->table.saving->before_any_change();
  for (const auto& residence : impl_->table.residences) residence->offload(impl_->table.on.threads);
}

void Optimizer::onload() { const Impl::StateCall call(*impl_); }

void Optimizer::set_threads(int threads) {
  const Impl::Call call(*impl_);
  impl_->table.on.set_threads(threads);
}

void Optimizer::set_nonfinite(NonFinite policy) {
  const Impl::Call call(*impl_);
  impl_->table.nonfinite = policy;
}

const char* Optimizer::cpu_target() const { return impl_->table.on.host->target(); }

MemoryReport Optimizer::report() const {
  const Impl::Inside inside(*impl_);
  impl_->resolve();
  const ParamTable& table = impl_->table;
  MemoryReport report;
  for (const Parameter& param : table.params) {
    if (!param.has_state) continue;
    ++report.params;
    report.elements += param.layout.numel;
    report.state_bytes += param.state_bytes();
  }
  for (const auto& residence : table.residences) {
    report.offloaded_bytes += residence->offloaded_bytes();
    report.disk_bytes += residence->on_disk_bytes();
    report.allocated_bytes += residence->direct_bytes() - residence->on_disk_bytes();
    if (!residence->store()) continue;
    // A separate pass computes norms from what the step reads.
    const bool twice = std::any_of(table.params.begin(), table.params.end(), [&](const Parameter& param) {
      return &table.residence_of(param) == residence.get() && param.paged && param.norms_read_arrays();
    });
    MemoryReport store = residence->store()->report();
    if (twice)
      for (int64_t* const moved : {&store.moved_per_step, &store.disk_moved_per_step}) *moved += *moved / 2;
#define LT_REPORT_FIELD(type, name, unit, meaning) add_field(store.name, report.name);
#include "lowtide/report.def"
  }
  report.steps = table.steps;
  report.skipped_steps = table.skipped_steps;
  return report;
}

std::vector<std::string> cpu_targets() { return cpu::make_backend("")->targets(); }
const char* version() { return LOWTIDE_VERSION; }

}  // namespace lowtide
