#include "lowtide/optimizer.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <deque>
#include <memory>
#include <utility>

#include "backend/cpu/cpu_backend.h"
#include "backend/dialect.h"
#include "core/error.h"
#include "core/thread_pool.h"
#include "optim/checkpoint.h"
#include "optim/home.h"
#include "optim/hyper.h"
#include "optim/slot.h"

namespace lowtide {
namespace {

constexpr long long ll(int64_t n) { return n; }

// memcpy that takes null pointers where there is nothing to copy.
void copy_bytes(void* to, const void* from, int64_t bytes) {
  if (bytes) std::memcpy(to, from, static_cast<size_t>(bytes));
}

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
    size_t home;
  };

  explicit Impl(const OptimizerOptions& options)
      : rule(find_rule(options.rule)), nonfinite(options.nonfinite), backend(cpu::make_backend(options.cpu_target)) {
    set_threads(options.threads);
    homes.push_back(std::make_unique<Home>(options.memory));
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

  Home& home_of(const Slot& slot) const { return *homes[groups[static_cast<size_t>(slot.group)].home]; }

  // Gives `param` its state, and with it, under a budget, every parameter of that budget that is waiting for one: what
  // fits can only be judged over all of them.
  void place(size_t param) {
    Home& home = home_of(slots[param]);
    std::vector<Slot*> together;
    std::vector<int64_t> numbers;
    for (size_t i = 0; i < slots.size(); ++i) {
      Slot& slot = slots[i];
      const bool waits =
          home.limited() && !slot.has_state && slot.wants_state && slot.layout.numel > 0 && &home_of(slot) == &home;
      if (i != param && !waits) continue;
      together.push_back(&slot);
      numbers.push_back(static_cast<int64_t>(i));
    }
    home.place(together, numbers);
  }

  const void* args_for(const Slot& slot, int64_t steps, bool first) {
    const int64_t t = steps + 1;
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
    for (size_t i = 0; i < slots.size(); ++i)
      if (grads[i].data) slots[i].wants_state = true;
    for (size_t i = 0; i < slots.size(); ++i) {
      const Gradient& grad = grads[i];
      Slot& slot = slots[i];
      if (!grad.data || slot.layout.numel == 0) continue;
      LT_REQUIRE(grad.dtype == DType::kF32 || grad.dtype == DType::kBF16 || grad.dtype == DType::kF16,
                 "got element type %d for the gradient of parameter %zu; gradients are float32, bfloat16 or float16",
                 static_cast<int>(grad.dtype), i);
      if (!slot.has_state) place(i);
      StepItem& item = items.emplace_back();
      item_params.push_back(static_cast<int64_t>(i));
      item.param = slot.data;
      item.param_dtype = slot.dtype;
      item.param_layout = &slot.layout;
      item.rule = slot.rule;
      item.codec = slot.codec;
      item.args = args_for(slot, slot.steps, slot.fresh);
      const double sign = groups[static_cast<size_t>(slot.group)].hyper.maximize ? -1 : 1;
      item.grad_scale = static_cast<float>(sign * options.grad_scale);
      std::copy(slot.codes, slot.codes + kMaxStates, item.codes);
      std::copy(slot.scales, slot.scales + kMaxStates, item.scales);
      set_gradient(slot, grad, item);
    }
  }

  // Whether a step of this parameter needs its store.
  bool streams(const Slot& slot) const { return slot.paged && rules()[static_cast<size_t>(slot.rule)].states > 0; }

  void count(std::span<const int64_t> params) {
    for (const int64_t param : params) {
      Slot& slot = slots[static_cast<size_t>(param)];
      ++slot.steps;
      if (rules()[static_cast<size_t>(slot.rule)].states > 0) slot.fresh = false;
    }
  }

  // Steps the items that are directly addressable, then those in stores, chunk by chunk.
  void step_paged(void* stream) {
    std::vector<const StepItem*> streamed(slots.size(), nullptr);
    std::vector<StepItem> direct;
    std::vector<int64_t> direct_params;
    for (size_t i = 0; i < items.size(); ++i) {
      const int64_t param = item_params[i];
      if (streams(slots[static_cast<size_t>(param)])) {
        streamed[static_cast<size_t>(param)] = &items[i];
      } else {
        direct.push_back(items[i]);
        direct_params.push_back(param);
      }
    }
    backend->step(direct, threads, false, stream);
    count(direct_params);
    std::vector<int64_t> wanted;
    for (size_t param = 0; param < streamed.size(); ++param)
      if (streamed[param]) wanted.push_back(static_cast<int64_t>(param));
    try {
      for (const std::unique_ptr<Home>& home : homes)
        if (home->store())
          home->store()->step(
              [&](std::span<const Piece> pieces, std::byte* memory) { step_pieces(pieces, memory, streamed, stream); },
              threads, wanted);
    } catch (...) {
      settle();
      throw;
    }
    settle();
  }

  void step_pieces(std::span<const Piece> pieces, std::byte* memory, const std::vector<const StepItem*>& streamed,
                   void* stream) {
    std::vector<StepItem> batch;
    for (const Piece& piece : pieces) {
      const StepItem* whole = streamed[static_cast<size_t>(piece.param)];
      if (!whole) continue;  // no gradient in this step
      const Slot& slot = slots[static_cast<size_t>(piece.param)];
      StepItem& item = batch.emplace_back(*whole);
      const Progress& progress = slot.progress[piece.number];
      item.args = args_for(slot, slot.steps - progress.behind, progress.fresh);
      item.first_block = piece.first_block;
      item.blocks = piece.blocks;
      for (int k = 0; k < piece.states; ++k) {
        item.codes[k] = memory + piece.codes_at[k];
        if (piece.scaled) item.scales[k] = reinterpret_cast<float*>(memory + piece.scales_at[k]);
      }
    }
    backend->step(batch, threads, false, stream);
    for (const Piece& piece : pieces)
      if (streamed[static_cast<size_t>(piece.param)])
        slots[static_cast<size_t>(piece.param)].progress[piece.number].done = true;
  }

  // Counts a step of the parameters of which some piece was stepped; the others' pieces fall behind.
  void settle() {
    for (Slot& slot : slots) {
      const auto done = [](const Progress& piece) { return piece.done; };
      if (std::none_of(slot.progress.begin(), slot.progress.end(), done)) continue;
      ++slot.steps;
      slot.fresh = false;
      for (Progress& piece : slot.progress) {
        if (piece.done)
          piece.fresh = false;
        else
          ++piece.behind;
        piece.done = false;
      }
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
    const bool paged = std::any_of(item_params.begin(), item_params.end(),
                                   [&](int64_t param) { return streams(slots[static_cast<size_t>(param)]); });
    if (!paged) {
      backend->step(items, threads, ordered, options.stream);
      count(item_params);
    } else {
      LT_REQUIRE(!ordered,
                 "got parameters whose memory overlaps, which are stepped one after another; with state on disk "
                 "that cannot be: give them a budget of their own that holds their state");
      step_paged(options.stream);
    }
    ++steps;
    return StepResult{};
  }

  // Calls visit(item, first element) for the parts of state k: one where it is directly addressable, else each piece.
  template <class Fn>
  void for_each_part(int64_t param, int k, bool change, Fn&& visit) {
    Slot& slot = slot_with_state(param, k);
    CodecItem item;
    item.codec = slot.codec;
    item.is_signed = (rules()[static_cast<size_t>(slot.state_rule)].signed_mask >> k) & 1;
    item.rows = slot.layout.rows;
    item.row_length = slot.layout.row_length;
    item.codes = slot.codes[k];
    item.scales = slot.scales[k];
    item.blocks = slot.layout.blocks(kBlockElements);
    if (!slot.paged) return visit(item, int64_t{0}, slot.layout.numel);
    home_of(slot).store()->visit(param, change, [&](const Piece& piece, std::byte* memory) {
      item.first_block = piece.first_block;
      item.blocks = piece.blocks;
      item.codes = memory + piece.codes_at[k];
      item.scales = piece.scaled ? reinterpret_cast<float*>(memory + piece.scales_at[k]) : nullptr;
      visit(item, piece.first_element, piece.elements);
    });
  }

  // What a checkpoint says of the state as it is now.
  Checkpoint describe(const std::string& metadata) const {
    Checkpoint out;
    out.rule = rules()[static_cast<size_t>(rule)].name;
    out.metadata = metadata;
    for (size_t i = 0; i < slots.size(); ++i) {
      const Slot& slot = slots[i];
      for (const Progress& piece : slot.progress)
        LT_REQUIRE(piece.behind == 0,
                   "parameter %zu is half way through a step that a failing disk stopped; take another step first", i);
      CheckpointParam param = describe(slot, slot.has_state && !slot.fresh ? slot.state_rule : -1);
      param.name = std::to_string(i);
      out.params.push_back(std::move(param));
    }
    return out;
  }

  // of_rule -1: without state.
  CheckpointParam describe(const Slot& slot, int of_rule) const {
    const CodecInfo& codec = codecs()[static_cast<size_t>(slot.codec)];
    CheckpointParam param;
    param.sizes = slot.sizes;
    param.group = slot.group;
    param.steps = slot.steps;
    param.codec = codec.name;
    param.block = codec.scaled ? kBlockElements : 0;
    if (of_rule < 0) return param;
    const RuleInfo& of = rules()[static_cast<size_t>(of_rule)];
    for (int k = 0; k < of.states; ++k)
      param.states.push_back({of.state_names[static_cast<size_t>(k)], ((of.signed_mask >> k) & 1) != 0,
                              slot.layout.numel * codec.code_bytes,
                              codec.scaled ? slot.layout.blocks(kBlockElements) * int64_t{sizeof(float)} : 0});
    return param;
  }

  void copy_state(const StatePart& part, int64_t offset, int64_t bytes, std::byte* to, const std::byte* from) {
    Slot& slot = slots[part.param];
    const int k = static_cast<int>(part.state);
    if (slot.paged)
      return home_of(slot).store()->copy({static_cast<int64_t>(part.param), k, part.scales}, offset, bytes, to, from);
    std::byte* const here =
        (part.scales ? reinterpret_cast<std::byte*>(slot.scales[k]) : static_cast<std::byte*>(slot.codes[k])) + offset;
    if (from) copy_bytes(here, from, bytes);
    if (to) copy_bytes(to, here, bytes);
  }

  void check_fits(const Checkpoint& saved) const {
    const RuleInfo& mine = rules()[static_cast<size_t>(rule)];
    LT_REQUIRE(saved.rule == mine.name, "got a checkpoint of '%s', wanted one of '%s'", saved.rule.c_str(), mine.name);
    LT_REQUIRE(saved.params.size() == slots.size(), "got a checkpoint of %zu parameters, wanted %zu",
               saved.params.size(), slots.size());
    for (size_t i = 0; i < slots.size(); ++i) {
      const CheckpointParam& got = saved.params[i];
      const CheckpointParam wanted = describe(slots[i], rule);
      LT_REQUIRE(got.sizes == wanted.sizes, "parameter %zu has other sizes in the checkpoint", i);
      if (got.states.empty()) continue;
      LT_REQUIRE(got.codec == wanted.codec && got.block == wanted.block,
                 "parameter %zu has '%s' state in the checkpoint, wanted '%s': build the optimizer with the state and "
                 "min_quantized_numel of the saved one",
                 i, got.codec.c_str(), wanted.codec.c_str());
      LT_REQUIRE(got.states.size() == wanted.states.size(),
                 "parameter %zu has %zu states in the checkpoint, wanted %zu", i, got.states.size(),
                 wanted.states.size());
      for (size_t k = 0; k < wanted.states.size(); ++k)
        LT_REQUIRE(got.states[k].name == wanted.states[k].name &&
                       got.states[k].code_bytes == wanted.states[k].code_bytes &&
                       got.states[k].scale_bytes == wanted.states[k].scale_bytes,
                   "state %zu of parameter %zu has another name or size in the checkpoint", k, i);
    }
  }

  void allocate_for(const Checkpoint& saved) {
    for (size_t i = 0; i < slots.size(); ++i)
      if (!saved.params[i].states.empty()) allocate_all_states(i);
  }

  void set_steps_of(const Checkpoint& saved) {
    for (size_t i = 0; i < slots.size(); ++i) {
      Slot& slot = slots[i];
      slot.steps = saved.params[i].steps;
      for (Progress& piece : slot.progress) piece.behind = 0;
      if (!saved.params[i].states.empty()) {
        slot.set_fresh(false);
        continue;
      }
      // Nothing was saved: what this optimizer may hold is of another past.
      const int states = slot.has_state ? rules()[static_cast<size_t>(slot.state_rule)].states : 0;
      for (int k = 0; k < states; ++k) clear_state(static_cast<int64_t>(i), k);
      slot.set_fresh(true);
    }
  }

  void clear_state(int64_t param, int k) {
    for_each_part(param, k, true, [&](const CodecItem& item, int64_t, int64_t elements) {
      const CodecInfo& codec = codecs()[static_cast<size_t>(item.codec)];
      std::memset(item.codes, codec.zero_code[item.is_signed], static_cast<size_t>(elements * codec.code_bytes));
      if (item.scales) std::memset(item.scales, 0, static_cast<size_t>(item.blocks) * sizeof(float));
    });
  }

  // All states of the rule, also those that its present hyper-parameters do not use.
  void allocate_all_states(size_t param) {
    Slot& slot = slots[param];
    const auto states = [](int of) { return rules()[static_cast<size_t>(of)].states; };
    if (slot.has_state && states(slot.state_rule) >= states(rule)) return;
    const int effective = slot.rule;
    const bool had = std::exchange(slot.has_state, false);
    slot.rule = rule;
    try {
      place(param);
    } catch (...) {
      slot.rule = effective;
      slot.has_state = had;
      throw;
    }
    slot.rule = effective;
  }

  int rule;
  NonFinite nonfinite;
  int threads = 1;
  std::unique_ptr<Backend> backend;
  std::vector<std::unique_ptr<Home>> homes;  // the first is that of groups without a budget of their own
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
  const int codec = find_codec(options.state);
  size_t home = 0;
  if (options.memory) {
    impl_->homes.push_back(std::make_unique<Home>(*options.memory));
    home = impl_->homes.size() - 1;
  }
  impl_->groups.push_back({options.hyper, codec, options.min_quantized_numel, home});
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
  slot.wants_state = with_state;
  Home& home = impl_->home_of(slot);
  Slot* const added = &impl_->slots.emplace_back(std::move(slot));
  const int64_t number = static_cast<int64_t>(impl_->slots.size()) - 1;
  if (with_state && !home.limited()) {  // under a budget all wait for the first step
    try {
      home.place({&added, 1}, {&number, 1});
    } catch (...) {
      impl_->slots.pop_back();
      throw;
    }
  }
  return number;
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
  impl_->slot_at(param);
  impl_->allocate_all_states(static_cast<size_t>(param));
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
  slot.set_fresh(steps == 0);
  for (Progress& piece : slot.progress) piece.behind = 0;
}

void Optimizer::export_state(int64_t param, int k, float* out) const {
  const Exclusive guard(impl_->busy);
  impl_->for_each_part(param, k, false, [&](CodecItem item, int64_t first, int64_t) {
    item.values = out + first;
    impl_->backend->decode(item, nullptr);
  });
}

void Optimizer::import_state(int64_t param, int k, const float* in) {
  const Exclusive guard(impl_->busy);
  impl_->for_each_part(param, k, true, [&](CodecItem item, int64_t first, int64_t) {
    item.values = const_cast<float*>(in) + first;  // encode only reads it
    impl_->backend->encode(item, nullptr);
  });
  impl_->slot_at(param).set_fresh(false);
}

void Optimizer::read_state(int64_t param, int k, void* codes, float* scales) const {
  const Exclusive guard(impl_->busy);
  impl_->for_each_part(param, k, false, [&](const CodecItem& item, int64_t first, int64_t elements) {
    const int bytes = codecs()[static_cast<size_t>(item.codec)].code_bytes;
    copy_bytes(static_cast<std::byte*>(codes) + first * bytes, item.codes, elements * bytes);
    if (item.scales && scales) copy_bytes(scales + item.first_block, item.scales, item.blocks * int64_t{sizeof(float)});
  });
}

void Optimizer::write_state(int64_t param, int k, const void* codes, const float* scales) {
  const Exclusive guard(impl_->busy);
  impl_->for_each_part(param, k, true, [&](const CodecItem& item, int64_t first, int64_t elements) {
    const int bytes = codecs()[static_cast<size_t>(item.codec)].code_bytes;
    copy_bytes(item.codes, static_cast<const std::byte*>(codes) + first * bytes, elements * bytes);
    if (item.scales && scales) copy_bytes(item.scales, scales + item.first_block, item.blocks * int64_t{sizeof(float)});
  });
  impl_->slot_at(param).set_fresh(false);
}

void Optimizer::save(const std::string& path, const std::string& metadata) const {
  const Exclusive guard(impl_->busy);
  save_checkpoint(system_env(), path, impl_->describe(metadata),
                  [&](const StatePart& part, int64_t offset, std::byte* to, int64_t bytes) {
                    impl_->copy_state(part, offset, bytes, to, nullptr);
                  });
}

std::string Optimizer::load(const std::string& path) {
  const Exclusive guard(impl_->busy);
  const CheckpointFile file(system_env(), path);
  impl_->check_fits(file.contents());
  file.verify();
  impl_->allocate_for(file.contents());
  file.load([&](const StatePart& part, int64_t offset, const std::byte* from, int64_t bytes) {
    impl_->copy_state(part, offset, bytes, nullptr, from);
  });
  impl_->set_steps_of(file.contents());
  return file.contents().metadata;
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
  for (const std::unique_ptr<Home>& home : impl_->homes) {
    report.allocated_bytes += home->direct_bytes();
    if (!home->store()) continue;
    const StoreReport store = home->store()->report();
    report.allocated_bytes += store.resident_bytes + store.slot_bytes + store.kept_bytes;
    report.disk_bytes += store.disk_bytes;
    report.chunks += store.chunks;
    report.moved_per_step += store.moved_per_step;
    report.read_bytes += store.read_bytes;
    report.written_bytes += store.written_bytes;
    report.kept_bytes += store.kept_bytes;
    report.waited_seconds += store.waited_seconds;
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
