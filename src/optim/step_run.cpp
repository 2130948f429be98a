// Executes a planned step: addressable state in one call, then streamed state chunk by chunk.
#include <algorithm>
#include <exception>

#include "optim/async_save.h"
#include "optim/step_plan.h"

namespace lowtide {

StepResult StepPlan::take(bool guarded) {
  const bool told_by_sums = !options_.sums && sums_all();
  const int64_t bad = guarded || told_by_sums ? -1 : first_bad();
  StepResult found = bad < 0 ? StepResult{true, -1, guarded} : refuse(bad);
  if (table_.has_sums && found.applied) {
    const TermSums sums = options_.sums ? *options_.sums : sum_terms();
    if (table_.nonfinite != NonFinite::kPropagate && !sums.are_finite()) {
      const int64_t cause = told_by_sums && !guarded ? first_bad() : -1;
      found = cause < 0 ? refuse_sums(sums) : refuse(cause);
    }
    if (found.applied) take_sums(sums);
  }
  if (ballots_ || !options_.directions.empty()) clear_targets();
  if (!found.applied) {
    ++table_.skipped_steps;
    return found;
  }
  if (options_.preview) {
    preview();
    return found;
  }
  if (table_.saving)
    for (const int64_t number : params()) table_.saving->before_change(static_cast<size_t>(number));
  const int threads = table_.on.threads;
  void* const stream = options_.stream;
  const bool norms = table_.waits_for_norms();
  if (table_.needs_norms && place_norms()) {
    clear_norms();
    add_streamed_norms();
  }
  // Norms, too, depend on what earlier parameters left. Parameters of a step that streams do not overlap.
  if (norms && ordered_ && buffers_.wanted.empty()) {
    for (size_t i = 0; i < items_.size(); ++i) {
      measure(i, 1);
      backend_.step(items_.subspan(i, 1), threads, false, stream);
      buffers_.norms.clear();
    }
    count(params());
  } else {
    if (norms) measure(0, items_.size());
    if (buffers_.wanted.empty()) {
      step_items(items_, params(), ordered_);
      count(params());
    } else {
      split();
      if (!buffers_.direct.empty()) step_items(buffers_.direct, buffers_.direct_params, false);
      count(buffers_.direct_params);
    }
  }
  count(buffers_.empty);
  if (!buffers_.wanted.empty()) step_streamed();
  if (options_.sums && estimate_.known()) table_.share_estimate(estimate_);  // others have stepped
  ++table_.steps;
  return found;
}

void StepPlan::step_items(std::span<const StepItem> items, std::span<const int64_t> numbers, bool ordered) {
  backend_.step(items, table_.on.threads, ordered, options_.stream);
  if (options_.updates.empty()) return;
  buffers_.moves.clear();
  for (size_t i = 0; i < items.size(); ++i) {
    const Update* const update = update_of(numbers[i]);
    if (!update) continue;
    const Parameter& param = table_.params[static_cast<size_t>(numbers[i])];
    StepItem& move = buffers_.moves.emplace_back(items[i]);
    move.rule = mover_;
    move.args = buffers_.move_args[static_cast<size_t>(param.group)].bytes;
    move.stochastic = 0;
    move.grad = update->data, move.grad_dtype = update->dtype, move.grad_layout = &param.shape;
    move.grad_scale = static_cast<float>(update->scale);
    move.master.kind = param.master;
    if (param.master) set_keys(table_.seed, param.steps + 1, numbers[i], move);
  }
  if (!buffers_.moves.empty()) backend_.step(buffers_.moves, table_.on.threads, ordered, options_.stream);
}

// Zeroes the memory for signs or directions: starting from zeros, a step leaves the amount to subtract.
void StepPlan::clear_targets() const {
  if (ballots_) {
    const int64_t count = sign_offset(table_, table_.params.size());
    table_.on.clear(ballots_->out.bits, sign_bytes(count), options_.stream);
    table_.on.clear(ballots_->out.presence, presence_bytes(count), options_.stream);
  }
  for (size_t i = 0; i < items_.size(); ++i)
    if (const Parameter& param = table_.params[static_cast<size_t>(params()[i])]; is_direction(items_[i], param))
      table_.on.clear(items_[i].param, param.shape.numel * int64_t{sizeof(float)}, options_.stream);
}

void StepPlan::split() {
  buffers_.streamed.assign(table_.params.size(), nullptr);
  buffers_.direct.clear();
  buffers_.direct_params.clear();
  for (size_t i = 0; i < items_.size(); ++i) {
    const auto number = static_cast<size_t>(params()[i]);
    if (streams(table_.params[number])) {
      buffers_.streamed[number] = &items_[i];
    } else {
      buffers_.direct.push_back(items_[i]);
      buffers_.direct_params.push_back(params()[i]);
    }
  }
}

// A failing disk of one budget does not stop the steps of the others. An error that stopped a step is reported before
// one that only kept chunks from being written.
void StepPlan::step_streamed() {
  std::exception_ptr stopped, unwritten;
  for (const std::unique_ptr<Residence>& residence : table_.residences) {
    if (!residence->store()) continue;
    try {
      residence->store()->step([&](std::span<const Store::PlacedChunk> chunks) { step_chunks(chunks); },
                               table_.on.threads, buffers_.wanted, options_.stream);
    } catch (...) {
      std::exception_ptr& first = all_done(*residence) ? unwritten : stopped;
      if (!first) first = std::current_exception();
    }
  }
  commit();
  if (stopped) std::rethrow_exception(stopped);
  if (!unwritten) return;
  ++table_.steps;
  std::rethrow_exception(unwritten);
}

// True if all pieces of the streamed parameters of this residence have been stepped.
bool StepPlan::all_done(const Residence& residence) const {
  return std::all_of(buffers_.wanted.begin(), buffers_.wanted.end(), [&](int64_t number) {
    const Parameter& param = table_.params[static_cast<size_t>(number)];
    return &table_.residence_of(param) != &residence ||
           std::all_of(param.progress.begin(), param.progress.end(), [](const Progress& piece) { return piece.done; });
  });
}

// The item that steps one piece, whose state is now in memory.
StepItem StepPlan::part_of(const StepItem& whole, const Piece& piece, std::byte* memory, int64_t write_offset) {
  const Parameter& param = table_.params[static_cast<size_t>(piece.param)];
  const Progress& progress = param.progress[piece.number];
  StepItem item = whole;
  if (progress.behind || progress.uninitialized != param.uninitialized)
    set_args(param, piece.param, param.steps - progress.behind, progress.uninitialized, item);
  item.first_block = piece.first_block;
  item.blocks = piece.blocks;
  item.write_offset = write_offset;
  if (param.has_residual()) item.master.residual = memory + piece.codes_at[piece.states - 1];
  for (int k = 0; k < param.states(param.rule); ++k) {
    item.codes[k] = memory + piece.codes_at[k];
    if (piece.format[k].scales) item.scales[k] = reinterpret_cast<float*>(memory + piece.scales_at[k]);
  }
  return item;
}

void StepPlan::step_chunks(std::span<const Store::PlacedChunk> chunks) {
  buffers_.batch.clear();
  buffers_.batch_params.clear();
  buffers_.stepped.clear();
  for_each_part(chunks, [&](const StepItem& part, const Piece& piece) {
    buffers_.batch.push_back(part);
    buffers_.batch_params.push_back(piece.param);
    buffers_.stepped.push_back(&table_.params[static_cast<size_t>(piece.param)].progress[piece.number]);
  });
  step_items(buffers_.batch, buffers_.batch_params, false);
  for (Progress* const piece : buffers_.stepped) piece->done = true;
}

// Counts a step of each streamed parameter with a stepped piece; its other pieces fall behind.
void StepPlan::commit() {
  for (const int64_t number : buffers_.wanted) {
    Parameter& param = table_.params[static_cast<size_t>(number)];
    const auto done = [](const Progress& piece) { return piece.done; };
    if (std::none_of(param.progress.begin(), param.progress.end(), done)) continue;
    carry(param);
    ++param.steps;
    param.uninitialized = false;
    for (Progress& piece : param.progress) {
      if (piece.done)
        piece.uninitialized = false;
      else
        ++piece.behind;
      piece.done = false;
    }
  }
}

void StepPlan::append_parts_in_place(std::vector<StepItem>& parts) {
  split();
  parts = buffers_.direct;
  for (const std::unique_ptr<Residence>& residence : table_.residences)
    if (const DeviceStore* const store = residence->device_store())
      store->visit_in_place([&](std::span<const Store::PlacedChunk> chunks) {
        for_each_part(chunks, [&](const StepItem& part, const Piece&) { parts.push_back(part); });
      });
}

void StepPlan::count_all() {
  count(buffers_.direct_params);
  count(buffers_.empty);
  for (const int64_t number : buffers_.wanted)
    for (Progress& piece : table_.params[static_cast<size_t>(number)].progress) piece.done = true;
  commit();
  ++table_.steps;
}

}  // namespace lowtide
