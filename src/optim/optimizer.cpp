#include "lowtide/optimizer.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <deque>
#include <utility>

#include "backend/cpu/cpu_backend.h"
#include "backend/dialect.h"
#include "core/error.h"
#include "core/thread_pool.h"
#include "optim/hyper.h"
#include "optim/slot.h"

namespace lowtide {
namespace {

constexpr long long ll(int64_t n) { return n; }

// A group's arguments for one step number: all its parameters usually share one.
struct ArgsEntry {
  int group;
  int rule;
  int64_t t;
  bool first;
  alignas(16) std::byte bytes[kArgsBytes];
};

// Refuses a second call while one is under way (another thread, or a callback of this one).
class Exclusive {
 public:
  explicit Exclusive(std::atomic_flag& busy) : busy_(busy) {
    LT_REQUIRE(!busy_.test_and_set(std::memory_order_acquire),
               "this optimizer is in use by another thread; wait for its call to return");
  }
  ~Exclusive() { busy_.clear(std::memory_order_release); }
  Exclusive(const Exclusive&) = delete;
  Exclusive& operator=(const Exclusive&) = delete;

 private:
  std::atomic_flag& busy_;
};

}  // namespace

struct Optimizer::Impl {
  struct Group {
    Hyper hyper;
    int codec;
    int64_t min_quantized_numel;
  };

  explicit Impl(const OptimizerOptions& options)
      : rule(find_rule(options.rule)), nonfinite(options.nonfinite), backend(cpu::make_backend(options.cpu_target)) {
    set_threads(options.threads);
  }

  void set_threads(int n) {
    LT_REQUIRE(n >= 0, "got threads=%d, wanted 0 (one per core) or more", n);
    threads = n ? n : available_threads();
  }

  const Group& group_at(int group) const {
    LT_REQUIRE(group >= 0 && group < static_cast<int>(groups.size()), "got group %d of %zu", group, groups.size());
    return groups[static_cast<size_t>(group)];
  }
  Slot& slot_at(int64_t param) {
    LT_REQUIRE(param >= 0 && param < ll(static_cast<int64_t>(slots.size())), "got parameter %lld of %zu", ll(param),
               slots.size());
    return slots[static_cast<size_t>(param)];
  }
  Slot& slot_with_state(int64_t param, int k) {
    Slot& slot = slot_at(param);
    const int states = slot.has_state ? rules()[static_cast<size_t>(slot.state_rule)].states : 0;
    LT_REQUIRE(k >= 0 && k < states, "got state %d of parameter %lld, which has %d", k, ll(param), states);
    return slot;
  }

  static Layout checked_layout(const TensorView& view) {
    LT_REQUIRE(view.dtype == DType::kF32 || view.dtype == DType::kBF16 || view.dtype == DType::kF16,
               "got element type %d; parameters are float32, bfloat16 or float16", static_cast<int>(view.dtype));
    Layout layout = Layout::make(view.sizes, view.strides);
    LT_REQUIRE(layout.numel == 0 || view.data, "got a null pointer for a parameter of %lld elements", ll(layout.numel));
    LT_REQUIRE(!layout.overlaps_itself(),
               "two elements of the parameter may share one address (an expanded view?); step a copy of it instead");
    return layout;
  }

  void bind(Slot& slot, const TensorView& view, Layout layout) {
    slot.data = view.data;
    slot.dtype = view.dtype;
    slot.layout = std::move(layout);
    addresses_changed = true;
  }

  // Follows a change of momentum to or from 0: SGD's state comes with it and stays.
  void refresh_rule(Slot& slot) {
    const int now = effective_rule(rule, groups[static_cast<size_t>(slot.group)].hyper.momentum);
    if (slot.rule == now) return;
    slot.rule = now;
    const auto states = [](int of) { return rules()[static_cast<size_t>(of)].states; };
    if (states(now) > states(slot.state_rule)) slot.has_state = false;  // allocated by the next step
  }

  // True if memory of two parameters may overlap: they are then stepped one after another, in order.
  bool parameters_overlap() const {
    std::vector<std::pair<uintptr_t, uintptr_t>> ranges;
    for (const Slot& slot : slots) {
      const auto begin = reinterpret_cast<uintptr_t>(slot.data);
      if (slot.layout.numel)
        ranges.emplace_back(begin, begin + static_cast<uintptr_t>(slot.layout.extent * dtype_bytes(slot.dtype)));
    }
    std::sort(ranges.begin(), ranges.end());
    for (size_t i = 1; i < ranges.size(); ++i)
      if (ranges[i].first < ranges[i - 1].second) return true;
    return false;
  }

  const void* args_for(const Slot& slot) {
    const int64_t t = slot.steps + 1;
    const bool first = slot.fresh;
    const auto fits = [&](const ArgsEntry& e) {
      return e.group == slot.group && e.t == t && e.first == first && e.rule == slot.rule;
    };
    if (!args.empty() && fits(args.back())) return args.back().bytes;
    for (const ArgsEntry& e : args)
      if (fits(e)) return e.bytes;
    ArgsEntry& e = args.emplace_back();
    e.group = slot.group, e.rule = slot.rule, e.t = t, e.first = first;
    const Hyper& h = groups[static_cast<size_t>(slot.group)].hyper;
    const RuleHyper in{
        h.lr, h.beta1, h.beta2, h.eps, h.weight_decay, h.momentum, h.dampening, h.nesterov, static_cast<double>(t),
        first};
    rules()[static_cast<size_t>(slot.rule)].make_args(in, e.bytes);
    return e.bytes;
  }

  void set_gradient(Slot& slot, const Gradient& grad, StepItem& item) const {
    item.grad = grad.data;
    item.grad_dtype = grad.dtype;
    const size_t dims = slot.sizes.size();
    if (!grad.strides) {
      if (!slot.grad_strides.empty() || slot.grad_layout.numel != slot.layout.numel) {
        slot.grad_strides.clear();
        slot.grad_layout = Layout::make(slot.sizes, {});
      }
    } else if (slot.grad_strides.empty() ||
               !std::equal(slot.grad_strides.begin(), slot.grad_strides.end(), grad.strides)) {
      slot.grad_layout = Layout::make(slot.sizes, {grad.strides, dims});
      slot.grad_strides.assign(grad.strides, grad.strides + dims);
    }
    item.grad_layout = &slot.grad_layout;
  }

  // Everything that can fail happens here, before any parameter or state is touched.
  void prepare(std::span<const Gradient> grads, const StepOptions& options) {
    items.clear();
    item_params.clear();
    args.clear();
    for (size_t i = 0; i < slots.size(); ++i) {
      const Gradient& grad = grads[i];
      Slot& slot = slots[i];
      if (!grad.data || slot.layout.numel == 0) continue;
      LT_REQUIRE(grad.dtype == DType::kF32 || grad.dtype == DType::kBF16 || grad.dtype == DType::kF16,
                 "got element type %d for the gradient of parameter %zu; gradients are float32, bfloat16 or float16",
                 static_cast<int>(grad.dtype), i);
      if (!slot.has_state) slot.allocate_state(arena, slot.rule);
      StepItem& item = items.emplace_back();
      item_params.push_back(static_cast<int64_t>(i));
      item.param = slot.data;
      item.param_dtype = slot.dtype;
      item.param_layout = &slot.layout;
      item.rule = slot.rule;
      item.codec = slot.codec;
      item.args = args_for(slot);
      const double sign = groups[static_cast<size_t>(slot.group)].hyper.maximize ? -1 : 1;
      item.grad_scale = static_cast<float>(sign * options.grad_scale);
      std::copy(slot.codes, slot.codes + kMaxStates, item.codes);
      std::copy(slot.scales, slot.scales + kMaxStates, item.scales);
      set_gradient(slot, grad, item);
    }
  }

  StepResult step(std::span<const Gradient> grads, const StepOptions& options) {
    const Exclusive guard(busy);
    LT_REQUIRE(grads.size() == slots.size(),
               "got %zu gradients for %zu parameters; give one each, with null data where "
               "there is none",
               grads.size(), slots.size());
    LT_REQUIRE(std::isfinite(static_cast<float>(options.grad_scale)), "got grad_scale=%g, wanted a finite number",
               options.grad_scale);
    LT_REQUIRE(!options.stream, "got a stream for CPU parameters, wanted nullptr");
    prepare(grads, options);
    if (nonfinite != NonFinite::kPropagate && !options.assume_finite) {
      const int64_t bad = backend->first_nonfinite(items, threads, options.stream);
      if (bad >= 0) {
        const int64_t param = item_params[static_cast<size_t>(bad)];
        if (nonfinite == NonFinite::kRaise)
          fail(ErrorKind::kInvalidArgument,
               "the gradient of parameter %lld holds a NaN, an infinity or a magnitude of 2^62 and above; nothing was "
               "changed",
               ll(param));
        ++skipped_steps;
        return StepResult{false, param};
      }
    }
    if (addresses_changed) {
      ordered = parameters_overlap();
      addresses_changed = false;
    }
    backend->step(items, threads, ordered, options.stream);
    for (const int64_t param : item_params) {
      Slot& slot = slots[static_cast<size_t>(param)];
      ++slot.steps;
      if (rules()[static_cast<size_t>(slot.rule)].states > 0) slot.fresh = false;
    }
    ++steps;
    return StepResult{};
  }

  CodecItem codec_item(int64_t param, int k) {
    Slot& slot = slot_with_state(param, k);
    CodecItem item;
    item.codec = slot.codec;
    item.is_signed = (rules()[static_cast<size_t>(slot.state_rule)].signed_mask >> k) & 1;
    item.rows = slot.layout.rows;
    item.row_length = slot.layout.row_length;
    item.codes = slot.codes[k];
    item.scales = slot.scales[k];
    return item;
  }

  int rule;
  NonFinite nonfinite;
  int threads = 1;
  std::unique_ptr<Backend> backend;
  Arena arena;
  std::vector<Group> groups;
  std::deque<Slot> slots;  // stable addresses: items and callers point into them
  std::atomic_flag busy = ATOMIC_FLAG_INIT;
  bool addresses_changed = true, ordered = false;
  int64_t steps = 0, skipped_steps = 0;
  // One step's work list, kept for its memory.
  std::vector<StepItem> items;
  std::vector<int64_t> item_params;
  std::deque<ArgsEntry> args;
};

Optimizer::Optimizer(const OptimizerOptions& options) : impl_(std::make_unique<Impl>(options)) {}
Optimizer::~Optimizer() = default;
Optimizer::Optimizer(Optimizer&&) noexcept = default;
Optimizer& Optimizer::operator=(Optimizer&&) noexcept = default;

int Optimizer::add_group(const GroupOptions& options) {
  const Exclusive guard(impl_->busy);
  check_hyper(options.hyper);
  LT_REQUIRE(options.min_quantized_numel >= 0, "got min_quantized_numel=%lld, wanted 0 or more",
             ll(options.min_quantized_numel));
  impl_->groups.push_back({options.hyper, find_codec(options.state), options.min_quantized_numel});
  return static_cast<int>(impl_->groups.size()) - 1;
}

void Optimizer::set_hyper(int group, const Hyper& hyper) {
  const Exclusive guard(impl_->busy);
  impl_->group_at(group);
  check_hyper(hyper);
  impl_->groups[static_cast<size_t>(group)].hyper = hyper;
  for (Slot& slot : impl_->slots)
    if (slot.group == group) impl_->refresh_rule(slot);
}

const Hyper& Optimizer::hyper(int group) const { return impl_->group_at(group).hyper; }

int64_t Optimizer::add_param(int group, const TensorView& param, bool with_state) {
  const Exclusive guard(impl_->busy);
  const Impl::Group& of = impl_->group_at(group);
  Layout layout = Impl::checked_layout(param);
  Slot slot;
  slot.group = group;
  slot.rule = effective_rule(impl_->rule, of.hyper.momentum);
  slot.codec = codec_for(of.codec, layout, of.min_quantized_numel);
  slot.sizes = param.sizes;
  impl_->bind(slot, param, std::move(layout));
  if (with_state) slot.allocate_state(impl_->arena, slot.rule);
  impl_->slots.push_back(std::move(slot));
  return static_cast<int64_t>(impl_->slots.size()) - 1;
}

void Optimizer::rebind(int64_t param, const TensorView& view) {
  const Exclusive guard(impl_->busy);
  Slot& slot = impl_->slot_at(param);
  LT_REQUIRE(view.sizes == slot.sizes, "the sizes of parameter %lld changed; build a new optimizer for it", ll(param));
  impl_->bind(slot, view, Impl::checked_layout(view));
}

int64_t Optimizer::param_count() const { return static_cast<int64_t>(impl_->slots.size()); }

StepResult Optimizer::step(std::span<const Gradient> grads, const StepOptions& options) {
  return impl_->step(grads, options);
}

std::vector<StateView> Optimizer::state(int64_t param) const {
  const Slot& slot = impl_->slot_at(param);
  std::vector<StateView> views;
  if (!slot.has_state) return views;
  const RuleInfo& rule = rules()[static_cast<size_t>(slot.state_rule)];
  const CodecInfo& codec = codecs()[static_cast<size_t>(slot.codec)];
  for (int k = 0; k < rule.states; ++k)
    views.push_back({rule.state_names[static_cast<size_t>(k)], codec.name, slot.codes[k], slot.scales[k],
                     slot.layout.numel, slot.layout.rows, codec.scaled ? slot.blocks_per_row() : 0, codec.code_bytes,
                     codec.scaled ? kBlockElements : 0});
  return views;
}

void Optimizer::allocate_state(int64_t param) {
  const Exclusive guard(impl_->busy);
  Slot& slot = impl_->slot_at(param);
  const auto states = [](int of) { return rules()[static_cast<size_t>(of)].states; };
  if (!slot.has_state || states(slot.state_rule) < states(impl_->rule)) slot.allocate_state(impl_->arena, impl_->rule);
}

bool Optimizer::has_state(int64_t param) const { return impl_->slot_at(param).has_state; }

const char* Optimizer::state_codec(int64_t param) const {
  return codecs()[static_cast<size_t>(impl_->slot_at(param).codec)].name;
}

int64_t Optimizer::steps(int64_t param) const { return impl_->slot_at(param).steps; }
const int64_t* Optimizer::steps_address(int64_t param) const { return &impl_->slot_at(param).steps; }

void Optimizer::set_steps(int64_t param, int64_t steps) {
  const Exclusive guard(impl_->busy);
  LT_REQUIRE(steps >= 0, "got %lld steps, wanted 0 or more", ll(steps));
  Slot& slot = impl_->slot_at(param);
  slot.steps = steps;
  slot.fresh = steps == 0;
}

void Optimizer::export_state(int64_t param, int k, float* out) const {
  const Exclusive guard(impl_->busy);
  CodecItem item = impl_->codec_item(param, k);
  item.values = out;
  impl_->backend->decode(item, nullptr);
}

void Optimizer::import_state(int64_t param, int k, const float* in) {
  const Exclusive guard(impl_->busy);
  CodecItem item = impl_->codec_item(param, k);
  item.values = const_cast<float*>(in);  // encode only reads it
  impl_->backend->encode(item, nullptr);
  impl_->slot_at(param).fresh = false;
}

void Optimizer::set_threads(int threads) {
  const Exclusive guard(impl_->busy);
  impl_->set_threads(threads);
}
void Optimizer::set_nonfinite(NonFinite policy) {
  const Exclusive guard(impl_->busy);
  impl_->nonfinite = policy;
}
const char* Optimizer::cpu_target() const { return impl_->backend->target(); }

MemoryReport Optimizer::report() const {
  MemoryReport report;
  for (const Slot& slot : impl_->slots) {
    if (!slot.has_state) continue;
    ++report.params;
    report.elements += slot.layout.numel;
    report.state_bytes += slot.state_bytes();
  }
  report.allocated_bytes = impl_->arena.allocated_bytes();
  report.steps = impl_->steps;
  report.skipped_steps = impl_->skipped_steps;
  return report;
}

std::vector<std::string> cpu_targets() { return cpu::make_backend("")->targets(); }
const char* version() { return LOWTIDE_VERSION; }

}  // namespace lowtide
