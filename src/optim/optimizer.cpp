#include "lowtide/optimizer.h"

#include "optim/optimizer_env.h"
#include "optim/optimizer_impl.h"

namespace lowtide {

Optimizer::Optimizer(const OptimizerOptions& options) : impl_(std::make_unique<Impl>(options, system_env())) {}
Optimizer::Optimizer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Optimizer OptimizerEnv::make(const OptimizerOptions& options, Env& env, std::unique_ptr<Backend> device) {
  return Optimizer(std::make_unique<Optimizer::Impl>(options, env, std::move(device)));
}
Optimizer::~Optimizer() = default;
Optimizer::Optimizer(Optimizer&&) noexcept = default;
Optimizer& Optimizer::operator=(Optimizer&&) noexcept = default;

int Optimizer::add_group(const GroupOptions& options) {
  const Exclusive guard(impl_->busy);
  const GroupSpec group = make_group(options, impl_->rule, impl_->groups, impl_->homes.size());
  if (options.memory) impl_->add_home(*options.memory);
  impl_->groups.push_back(group);
  return static_cast<int>(impl_->groups.size()) - 1;
}

void Optimizer::set_hyper(int group, const Hyper& hyper) {
  const Exclusive guard(impl_->busy);
  const GroupSpec& before = impl_->group_at(group);
  const auto any = [&](auto&& of) {
    return std::any_of(impl_->slots.begin(), impl_->slots.end(),
                       [&](const Parameter& s) { return s.group == group && of(s); });
  };
  check_change(before, hyper, any([](const Parameter&) { return true; }),
               any([&](const Parameter& s) { return s.codec == before.codec; }));
  const int now = effective_rule(before.rule, hyper);
  const auto states = [](int of) { return rule_info(of).states; };
  for (const Parameter& slot : impl_->slots)
    LT_REQUIRE(slot.group != group || !slot.has_state || !slot.has_residual() || states(now) <= states(slot.state_rule),
               "got momentum=%g for parameters without a momentum buffer whose weights have a residual, wanted 0 as "
               "when they got their state: build a new optimizer",
               hyper.momentum);
  impl_->groups[static_cast<size_t>(group)].hyper = hyper;
  for (Parameter& slot : impl_->slots)
    if (slot.group == group) impl_->refresh_rule(slot);
}

void Optimizer::set_rounding(int group, const std::string& rounding) {
  const Exclusive guard(impl_->busy);
  const int codec = impl_->group_at(group).codec;
  const RoundingMode mode = find_rounding(rounding);
  check_rounding(codec, mode);
  impl_->groups[static_cast<size_t>(group)].rounding = mode;
}

void Optimizer::set_seed(uint64_t seed) {
  const Exclusive guard(impl_->busy);
  impl_->seed = seed;
}

const Hyper& Optimizer::hyper(int group) const { return impl_->group_at(group).hyper; }

int64_t Optimizer::add_param(int group, const TensorView& param, bool with_state,
                             const std::optional<WholeParam>& whole) {
  const Exclusive guard(impl_->busy);
  impl_->onload();
  const GroupSpec& of = impl_->group_at(group);
  Layout layout = Impl::checked_layout(param);
  Parameter slot{make_spec(of, param.sizes, param.dtype, whole)};
  slot.group = group;
  impl_->bind(slot, param, std::move(layout));
  slot.wants_state = with_state;
  Home& home = impl_->home_of(slot);
  Parameter* const added = &impl_->slots.emplace_back(std::move(slot));
  const int64_t number = static_cast<int64_t>(impl_->slots.size()) - 1;
  if (with_state && !home.waits()) {  // else all wait for the first step
    try {
      home.place({&added, 1}, {&number, 1});
    } catch (...) {
      impl_->slots.pop_back();
      throw;
    }
  }
  return number;
}

void Optimizer::place_states() {
  const Exclusive guard(impl_->busy);
  impl_->resolve();
  impl_->onload();
  for (size_t i = 0; i < impl_->slots.size(); ++i) {
    const Parameter& slot = impl_->slots[i];
    if (slot.wants_state && !slot.has_state && impl_->home_of(slot).waits()) impl_->place(i, {});
  }
}

void Optimizer::rebind(int64_t param, const TensorView& view) {
  const Exclusive guard(impl_->busy);
  Parameter& slot = impl_->slot_at(param);
  LT_REQUIRE(view.sizes == slot.sizes, "the sizes of parameter %lld changed; build a new optimizer for it", ll(param));
  LT_REQUIRE(view.dtype == slot.dtype || !slot.master,
             "the element type of parameter %lld, whose weights are kept with master='%s', changed; build a new "
             "optimizer for it",
             ll(param), master_info(slot.master).name);
  impl_->bind(slot, view, Impl::checked_layout(view));
}

int64_t Optimizer::param_count() const { return static_cast<int64_t>(impl_->slots.size()); }

StepResult Optimizer::check(std::span<const Gradient> grads, const StepOptions& options) {
  const Exclusive guard(impl_->busy);
  impl_->resolve_and_raise();
  return impl_->check(grads, options);
}

StepResult Optimizer::step(std::span<const Gradient> grads, const StepOptions& options) {
  const Exclusive guard(impl_->busy);
  return impl_->step(grads, options);
}

void Optimizer::synchronize() {
  const Exclusive guard(impl_->busy);
  Device* const device = impl_->backend->device();
  if (!device) return;
  impl_->wait_for_steps();
  for (const std::unique_ptr<Home>& home : impl_->homes)
    if (home->store()) home->store()->synchronize();
  impl_->resolve_and_raise();
}

std::vector<StateView> Optimizer::state(int64_t param) const {
  const Parameter& slot = impl_->slot_at(param);
  std::vector<StateView> views;
  if (!slot.has_state) return views;
  for (int k = 0; k < slot.arrays(slot.state_rule); ++k) {
    StateView& view = views.emplace_back(slot.view(slot.state_rule, k));
    view.codes = slot.codes[k];
    view.scales = slot.scales[k];
  }
  return views;
}

void Optimizer::allocate_state(int64_t param) {
  const Exclusive guard(impl_->busy);
  impl_->resolve();
  impl_->onload();
  const Parameter& slot = impl_->slot_at(param);
  impl_->allocate_states(static_cast<size_t>(param), slot.fullest_rule());
}

std::vector<StateInfo> Optimizer::states_of(int64_t param) const {
  const Parameter& slot = impl_->slot_at(param);
  const int rule = slot.fullest_rule();
  std::vector<StateInfo> all;
  for (int k = 0; k < slot.states(rule); ++k) all.push_back({slot.view(rule, k).name, slot.is_signed(rule, k)});
  return all;
}

bool Optimizer::has_state(int64_t param) const { return impl_->slot_at(param).has_state; }

const char* Optimizer::state_codec(int64_t param) const { return codec_info(impl_->slot_at(param).codec).name; }

int64_t Optimizer::steps(int64_t param) const {
  impl_->resolve();
  return impl_->slot_at(param).steps;
}
const int64_t* Optimizer::steps_address(int64_t param) const { return &impl_->slot_at(param).steps; }

void Optimizer::set_steps(int64_t param, int64_t steps) {
  const Exclusive guard(impl_->busy);
  impl_->resolve();
  LT_REQUIRE(steps >= 0 && steps <= kMostSteps, "got %lld steps, wanted 0 to 2^53", ll(steps));
  Parameter& slot = impl_->slot_at(param);
  slot.steps = steps;
  slot.set_uninitialized(steps == 0);
  for (Progress& piece : slot.progress) piece.behind = 0;
}

void Optimizer::export_state(int64_t param, int k, float* out) const {
  const Exclusive guard(impl_->busy);
  impl_->resolve();
  impl_->onload();
  impl_->require_decoded(param, k);
  impl_->for_each_part(param, k, false, [&](CodecItem item, int64_t first, int64_t) {
    item.values = out + first;
    impl_->host->decode(item, nullptr);
  });
}

void Optimizer::import_state(int64_t param, int k, const float* in) {
  const Exclusive guard(impl_->busy);
  impl_->resolve();
  impl_->onload();
  impl_->require_decoded(param, k);
  impl_->forget_unwritten();
  impl_->for_each_part(param, k, true, [&](CodecItem item, int64_t first, int64_t) {
    item.values = const_cast<float*>(in) + first;  // encode only reads it
    impl_->host->encode(item, nullptr);
  });
  impl_->slot_at(param).set_uninitialized(false);
  impl_->check_written();
}

void Optimizer::read_state(int64_t param, int k, void* codes, float* scales) const {
  const Exclusive guard(impl_->busy);
  impl_->resolve();
  impl_->onload();
  impl_->for_each_part(param, k, false, [&](const CodecItem& item, int64_t first, int64_t elements) {
    const StateFormat format = impl_->format_of_array(param, k);
    copy_bytes(static_cast<std::byte*>(codes) + format.code_bytes(first), item.codes, format.code_bytes(elements));
    if (item.scales && scales)
      copy_bytes(scales + item.first_block * format.scales, item.scales, format.scale_bytes(item.blocks));
  });
}

void Optimizer::write_state(int64_t param, int k, const void* codes, const float* scales) {
  const Exclusive guard(impl_->busy);
  impl_->resolve();
  impl_->onload();
  impl_->forget_unwritten();
  impl_->for_each_part(param, k, true, [&](const CodecItem& item, int64_t first, int64_t elements) {
    const StateFormat format = impl_->format_of_array(param, k);
    copy_bytes(item.codes, static_cast<const std::byte*>(codes) + format.code_bytes(first),
               format.code_bytes(elements));
    if (item.scales && scales)
      copy_bytes(item.scales, scales + item.first_block * format.scales, format.scale_bytes(item.blocks));
  });
  impl_->slot_at(param).set_uninitialized(false);
  impl_->check_written();
}

void Optimizer::save(const std::string& path, const std::string& metadata) const {
  const Exclusive guard(impl_->busy);
  impl_->resolve_and_raise();
  impl_->onload();
  save_checkpoint(impl_->env, path, impl_->describe(metadata),
                  [&](const StatePart& part, int64_t offset, std::byte* to, int64_t bytes) {
                    impl_->copy_state(part, offset, bytes, to, nullptr);
                  });
  impl_->catch_up();  // the file has one count for each parameter: what goes on here is what is loaded from it
}

std::string Optimizer::load(const std::string& path) {
  const Exclusive guard(impl_->busy);
  impl_->resolve();
  impl_->onload();
  impl_->forget_unwritten();
  const CheckpointFile file(impl_->env, path);
  impl_->check_fits(file.contents());
  file.verify();
  impl_->allocate_for(file.contents());
  std::string metadata = file.contents().metadata;
  bool begun = false;
  const auto begin = [&] {  // until all is in place, no step must be taken with a part of it
    for (Parameter& slot : impl_->slots) slot.partially_written = slot.has_state ? kAllStates : 0;
    begun = true;
  };
  file.load([&](const StatePart& part, int64_t offset, const std::byte* from, int64_t bytes) {
    if (!begun) begin();
    impl_->copy_state(part, offset, bytes, nullptr, from);
  });
  if (!begun) begin();
  impl_->set_steps_of(file.contents());
  impl_->check_written();
  return metadata;
}

void Optimizer::offload() {
  const Exclusive guard(impl_->busy);
  impl_->resolve();
  for (const std::unique_ptr<Home>& home : impl_->homes) home->check_offload();  // all of them, or none
  for (const std::unique_ptr<Home>& home : impl_->homes) home->offload(impl_->threads);
}

void Optimizer::onload() {
  const Exclusive guard(impl_->busy);
  impl_->resolve();
  impl_->onload();
}

void Optimizer::set_threads(int threads) {
  const Exclusive guard(impl_->busy);
  impl_->set_threads(threads);
}
void Optimizer::set_nonfinite(NonFinite policy) {
  const Exclusive guard(impl_->busy);
  impl_->nonfinite = policy;
}
const char* Optimizer::cpu_target() const { return impl_->host->target(); }

MemoryReport Optimizer::report() const {
  impl_->resolve();
  MemoryReport report;
  for (const Parameter& slot : impl_->slots) {
    if (!slot.has_state) continue;
    ++report.params;
    report.elements += slot.layout.numel;
    report.state_bytes += slot.state_bytes();
  }
  for (const std::unique_ptr<Home>& home : impl_->homes) {
    report.offloaded_bytes += home->parked_bytes();
    report.disk_bytes += home->on_disk_bytes();
    report.allocated_bytes += home->direct_bytes() - home->on_disk_bytes();
    if (!home->store()) continue;
    const StoreReport store = home->store()->report();
    report.allocated_bytes += store.resident_bytes + store.slot_bytes + store.kept_bytes;
    report.device_bytes += store.device_bytes;
    report.managed_bytes += store.managed_bytes;
    report.disk_bytes += store.disk_bytes;
    report.chunks += store.chunks;
    report.moved_per_step += store.moved_per_step;
    if (impl_->reads_state_twice(*home)) report.moved_per_step += store.moved_per_step / 2;
    report.read_bytes += store.read_bytes;
    report.written_bytes += store.written_bytes;
    report.kept_bytes += store.kept_bytes;
    report.waited_seconds += store.waited_seconds;
    report.promotions += store.promotions;
    report.demotions += store.demotions;
    if (report.transfer.empty()) report.transfer = store.transfer;
  }
  report.steps = impl_->steps;
  report.skipped_steps = impl_->skipped_steps;
  return report;
}

std::string checkpoint_metadata(const std::string& path) {
  return CheckpointFile(system_env(), path).contents().metadata;
}

std::vector<std::string> cpu_targets() { return cpu::make_backend("")->targets(); }
const char* version() { return LOWTIDE_VERSION; }

}  // namespace lowtide
