// One step: prepare, check, and hand over to the backend, directly or chunk by chunk.
#include "backend/random_keys.h"
#include "optim/optimizer_impl.h"

#include <cmath>
#include <exception>

namespace lowtide {

bool Optimizer::Impl::parameters_overlap(bool of_items) const {
  std::vector<std::pair<uintptr_t, uintptr_t>> ranges;
  for (size_t i = 0; i < (of_items ? items.size() : slots.size()); ++i) {
    const Parameter& slot = slots[of_items ? static_cast<size_t>(item_params[i]) : i];
    const auto begin = reinterpret_cast<uintptr_t>(slot.data);
    if (slot.layout.numel)
      ranges.emplace_back(begin, begin + static_cast<uintptr_t>(slot.layout.extent * dtype_bytes(slot.dtype)));
  }
  std::sort(ranges.begin(), ranges.end());
  for (size_t i = 1; i < ranges.size(); ++i)
    if (ranges[i].first < ranges[i - 1].second) return true;
  return false;
}

const ArgsEntry& Optimizer::Impl::args_for(const Parameter& slot, int64_t param, int64_t steps, bool first,
                                           bool direction) {
  direction = direction || voting;
  const int64_t t = steps + 1;
  const bool own = !norms.empty();
  const auto fits = [&](const ArgsEntry& e) {
    return !own && !e.own && e.group == slot.group && e.t == t && e.first == first && e.rule == slot.rule &&
           e.codec == slot.codec && e.direction == direction;
  };
  if (!args.empty() && fits(args.back())) return args.back();
  if (!own)
    for (const ArgsEntry& e : args)
      if (fits(e)) return e;
  ArgsEntry& e = args.emplace_back();
  e.group = slot.group, e.rule = slot.rule, e.codec = slot.codec, e.t = t, e.first = first, e.own = own;
  e.direction = direction;
  StepTerms terms{t, first, direction};
  if (own) std::copy_n(norms[static_cast<size_t>(param)].of, 2, terms.norm);
  e.stochastic = slot.make_args(groups[static_cast<size_t>(slot.group)], terms, e.bytes);
  return e;
}

void Optimizer::Impl::set_step(const Parameter& slot, int64_t of_steps, bool first, int64_t param, bool direction,
                               StepItem& item) {
  const ArgsEntry& e = args_for(slot, param, of_steps, first, direction);
  item.args = e.bytes;
  item.stochastic = e.stochastic;
  item.master.kind = voting || direction ? 0 : slot.master;
  if (item.stochastic || item.master.kind) set_keys(seed, of_steps + 1, param, item);
}

void Optimizer::Impl::set_gradient(Parameter& slot, const Gradient& grad, StepItem& item) const {
  item.grad = grad.data;
  item.grad_dtype = grad.dtype;
  const size_t dims = slot.sizes.size();
  if (!grad.strides) {
    if (!slot.grad_strides.empty() || slot.grad_layout.numel != slot.layout.numel) {
      Layout layout = Layout::make(slot.sizes, {});
      slot.grad_strides.clear();
      slot.grad_layout = std::move(layout);
    }
  } else if (slot.grad_strides.empty() ||
             !std::equal(slot.grad_strides.begin(), slot.grad_strides.end(), grad.strides)) {
    // Both or neither: strides that are remembered for another layout would be believed by the next step.
    Layout layout = Layout::make(slot.sizes, {grad.strides, dims});
    slot.grad_strides.reserve(dims);
    slot.grad_layout = std::move(layout);
    slot.grad_strides.assign(grad.strides, grad.strides + dims);
  }
  item.grad_layout = &slot.grad_layout;
}

void Optimizer::Impl::prepare(std::span<const Gradient> grads, const StepOptions& options) {
  items.clear();
  item_params.clear();
  empty_params.clear();
  args.clear();
  norms.clear();
  for (size_t i = 0; i < slots.size(); ++i) {
    const Gradient& grad = grads[i];
    Parameter& slot = slots[i];
    if (!grad.data) continue;
    LT_REQUIRE(grad.dtype == DType::kF32 || grad.dtype == DType::kBF16 || grad.dtype == DType::kF16,
               "got element type %d for the gradient of parameter %zu; gradients are float32, bfloat16 or float16",
               static_cast<int>(grad.dtype), i);
    require_whole(slot, static_cast<int64_t>(i));
    if (!slot.has_state) place(i, grads);
    if (slot.layout.numel == 0) {
      empty_params.push_back(static_cast<int64_t>(i));
      continue;
    }
    StepItem& item = items.emplace_back();
    item_params.push_back(static_cast<int64_t>(i));
    float* const direction = options.directions.empty() ? nullptr : options.directions[i];
    item.param_dtype = slot.dtype;
    item.param_layout = &slot.layout;
    if (voting) {
      item.ballot = &targets[i];
    } else if (direction) {
      if (slot.direction_layout.numel != slot.layout.numel) slot.direction_layout = Layout::make(slot.sizes, {});
      item.param = direction, item.param_dtype = DType::kF32, item.param_layout = &slot.direction_layout;
    } else {
      item.param = slot.data;
    }
    item.rule = slot.rule;
    item.codec = slot.codec;
    set_step(slot, slot.steps, slot.uninitialized, static_cast<int64_t>(i), direction, item);
    item.origin = slot.origin;
    const double sign = groups[static_cast<size_t>(slot.group)].hyper.maximize ? -1 : 1;
    item.grad_scale = static_cast<float>(sign * options.grad_scale);
    std::copy(slot.codes, slot.codes + kMaxStates, item.codes);
    std::copy(slot.scales, slot.scales + kMaxStates, item.scales);
    if (slot.has_residual()) item.master.residual = slot.codes[rule_info(slot.state_rule).states];
    set_gradient(slot, grad, item);
  }
}

void Optimizer::Impl::clear_directions(void* stream) {
  for (size_t i = 0; i < items.size(); ++i) {
    const Layout& layout = slots[static_cast<size_t>(item_params[i])].direction_layout;
    if (items[i].param_layout != &layout) continue;
    const int64_t bytes = layout.numel * int64_t{sizeof(float)};
    if (Device* const device = backend->device())
      device->fill(stream, items[i].param, 0, 1, bytes);
    else
      std::memset(items[i].param, 0, static_cast<size_t>(bytes));
  }
}

void Optimizer::Impl::step_paged(void* stream) {
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
  std::vector<int64_t> wanted;
  for (size_t param = 0; param < streamed.size(); ++param)
    if (streamed[param]) wanted.push_back(static_cast<int64_t>(param));
  backend->step(direct, threads, false, stream);
  count(direct_params);
  count(empty_params);
  // The failure of one budget's disk does not keep the others from their step. What stopped something matters more than
  // what could not be written.
  std::exception_ptr stopped, unwritten;
  for (const std::unique_ptr<Home>& home : homes) {
    if (!home->store()) continue;
    try {
      home->store()->step([&](std::span<const Store::PlacedChunk> chunks) { step_chunks(chunks, streamed, stream); },
                          threads, wanted, stream);
    } catch (...) {
      std::exception_ptr& first = all_done(*home, streamed) ? unwritten : stopped;
      if (!first) first = std::current_exception();
    }
  }
  settle();
  if (stopped) std::rethrow_exception(stopped);
  if (!unwritten) return;
  ++steps;
  std::rethrow_exception(unwritten);
}

bool Optimizer::Impl::all_done(const Home& home, const std::vector<const StepItem*>& streamed) const {
  for (size_t i = 0; i < slots.size(); ++i)
    if (streamed[i] && &home_of(slots[i]) == &home)
      for (const Progress& piece : slots[i].progress)
        if (!piece.done) return false;
  return true;
}

StepItem Optimizer::Impl::part_of(const StepItem& whole, const Piece& piece, std::byte* memory, int64_t write_offset) {
  const Parameter& slot = slots[static_cast<size_t>(piece.param)];
  const Progress& progress = slot.progress[piece.number];
  StepItem item = whole;
  set_step(slot, slot.steps - progress.behind, progress.uninitialized, piece.param, whole.param != slot.data, item);
  item.first_block = piece.first_block;
  item.blocks = piece.blocks;
  item.write_offset = write_offset;
  const int states = rule_info(slot.rule).states;
  if (slot.has_residual()) item.master.residual = memory + piece.codes_at[piece.states - 1];
  for (int k = 0; k < states; ++k) {
    item.codes[k] = memory + piece.codes_at[k];
    if (piece.format[k].scales) item.scales[k] = reinterpret_cast<float*>(memory + piece.scales_at[k]);
  }
  return item;
}

void Optimizer::Impl::step_chunks(std::span<const Store::PlacedChunk> chunks,
                                  const std::vector<const StepItem*>& streamed, void* stream) {
  std::vector<StepItem> batch;
  append_parts(chunks, streamed, batch);
  backend->step(batch, threads, false, stream);
  for (const Store::PlacedChunk& chunk : chunks)
    for (const Piece& piece : chunk.pieces)
      if (streamed[static_cast<size_t>(piece.param)])
        slots[static_cast<size_t>(piece.param)].progress[piece.number].done = true;
}

void Optimizer::Impl::append_parts(std::span<const Store::PlacedChunk> chunks,
                                   const std::vector<const StepItem*>& streamed, std::vector<StepItem>& parts) {
  for (const Store::PlacedChunk& chunk : chunks)
    for (const Piece& piece : chunk.pieces)
      if (const StepItem* const whole = streamed[static_cast<size_t>(piece.param)])  // else: no gradient in this step
        parts.push_back(part_of(*whole, piece, chunk.memory, chunk.write_offset));
}

void Optimizer::Impl::settle() {
  for (Parameter& slot : slots) {
    const auto done = [](const Progress& piece) { return piece.done; };
    if (std::none_of(slot.progress.begin(), slot.progress.end(), done)) continue;
    ++slot.steps;
    slot.uninitialized = false;
    for (Progress& piece : slot.progress) {
      if (piece.done)
        piece.uninitialized = false;
      else
        ++piece.behind;
      piece.done = false;
    }
  }
}

void Optimizer::Impl::check_arguments(std::span<const Gradient> grads, const StepOptions& options) const {
  LT_REQUIRE(grads.size() == slots.size(),
             "got %zu gradients for %zu parameters; give one each, with null data where "
             "there is none",
             grads.size(), slots.size());
  LT_REQUIRE(std::isfinite(static_cast<float>(options.grad_scale)), "got grad_scale=%g, wanted a finite number",
             options.grad_scale);
  LT_REQUIRE(!options.stream || backend->device(), "got a stream for CPU parameters, wanted nullptr");
  LT_REQUIRE(options.directions.empty() || (options.directions.size() == slots.size() && !voting),
             "got memory for %zu directions of %zu parameters, wanted one each, or none, and none for ballots",
             options.directions.size(), slots.size());
  LT_REQUIRE(
      options.directions.empty() || !needs_norms(),
      "got directions of %s, wanted those of a rule that needs no norms of whole parameters: adamw, lion, sgd ...",
      name_of(rule).c_str());
  LT_REQUIRE(options.free_bytes >= -1, "got free_bytes=%lld, wanted 0 or more, or -1 to have the driver asked",
             ll(options.free_bytes));
}

StepResult Optimizer::Impl::check(std::span<const Gradient> grads, const StepOptions& options) {
  check_arguments(grads, options);
  tell_homes(options);  // before memory is taken
  onload();
  prepare(grads, options);
  return search(options);
}

StepResult Optimizer::Impl::search(const StepOptions& options) {
  if (!searches(options)) return StepResult{};
  const int64_t bad = backend->first_nonfinite(items, threads, options.stream);
  if (bad < 0) return StepResult{};
  const int64_t param = item_params[static_cast<size_t>(bad)];
  if (nonfinite == NonFinite::kRaise) fail_nonfinite(param);
  return StepResult{false, param};
}

StepResult Optimizer::Impl::step(std::span<const Gradient> grads, const StepOptions& options) {
  Device* const device = backend->device();
  if (device && device->is_capturing(options.stream)) return record(grads, options);
  resolve_and_raise();
  check_arguments(grads, options);
  tell_homes(options);  // before memory is taken
  onload();
  prepare(grads, options);
  // Norms are waited for anyway: a step that needs them is taken, or not, when it returns.
  std::shared_ptr<Guard> guard =
      searches(options) && !needs_norms() ? backend->queue_guard(items, options.stream) : nullptr;
  StepResult result;
  if (guard) {
    result.pending = true;
  } else {
    try {
      result = search(options);
    } catch (...) {
      end_prefetch();
      throw;
    }
  }
  if (voting) clear_signs(*voting, options.stream);
  if (!options.directions.empty()) clear_directions(options.stream);
  if (!result.applied) {
    ++skipped_steps;
    end_prefetch();
    return result;
  }
  if (addresses_changed) {
    ordered = parameters_overlap(false);
    addresses_changed = false;
  }
  const bool stores = std::any_of(homes.begin(), homes.end(), [](const auto& home) { return home->store(); });
  const bool paged = stores && std::any_of(item_params.begin(), item_params.end(),
                                           [&](int64_t param) { return streams(slots[static_cast<size_t>(param)]); });
  // One that moved while it had no gradient is known by an address that another may have now.
  LT_REQUIRE(!paged || voting || !ordered || !parameters_overlap(true),
             "got parameters whose memory overlaps, which are stepped one after another; with state in "
             "chunks that cannot be: %s",
             backend->device() ? "on a device, make them one parameter"
                               : "give them a budget of their own that holds their state");
  if (guard) {
    for (StepItem& item : items) item.guard = guard.get();
    begin_pending(std::move(guard), false);
  }
  const bool one_by_one = ordered && !voting;
  if (needs_norms() && !one_by_one) {
    try {
      measure(items, item_params, options.stream);
    } catch (...) {
      end_prefetch();
      throw;
    }
  }
  if (!paged) {
    if (needs_norms() && one_by_one)  // norms, too, are of what those before have left
      for (size_t i = 0; i < items.size(); ++i) {
        measure({&items[i], 1}, {&item_params[i], 1}, options.stream);
        backend->step({&items[i], 1}, threads, false, options.stream);
        norms.clear();
      }
    else
      backend->step(items, threads, one_by_one, options.stream);
    count(item_params);
    count(empty_params);
    end_prefetch();
  } else {
    step_paged(options.stream);
  }
  if (device) stepped = device->record(options.stream);
  if (pending) pending->queued = stepped;
  ++steps;
  return result;
}

}  // namespace lowtide
