#include "memory/pager.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "core/error.h"

namespace lowtide {
namespace {

std::vector<int> wanted_of(const std::vector<int>& chunks, const std::vector<bool>& wanted) {
  if (wanted.empty()) return chunks;
  std::vector<int> out;
  std::copy_if(chunks.begin(), chunks.end(), std::back_inserter(out),
               [&](int chunk) { return wanted[static_cast<size_t>(chunk)]; });
  return out;
}

}  // namespace

Pager::Pager(TierPlan plan, TransferMode transfer) : plan_(std::move(plan)), transfer_(transfer) {
  const bool has_slots = transfer != TransferMode::kZeroCopy;
  LT_REQUIRE(plan_.slots >= (plan_.streamed.empty() || !has_slots ? 0 : 1),
             "got a plan of %d slots for %zu streamed chunks", plan_.slots, plan_.streamed.size());
  size_t streamed = 0;
  for (size_t chunk = 0; chunk < plan_.resident.size(); ++chunk) {
    const bool next = streamed < plan_.streamed.size() && plan_.streamed[streamed] == static_cast<int>(chunk);
    LT_REQUIRE(next != plan_.resident[chunk],
               "got a plan in which chunk %zu is %s; streamed chunks must be the ones that are not resident, in order",
               chunk, next ? "resident and streamed" : "neither resident nor the next to be streamed");
    streamed += next;
    (next && has_slots ? streamed_ : in_place_).push_back(static_cast<int>(chunk));
  }
  LT_REQUIRE(streamed == plan_.streamed.size(),
             "got a plan of %zu chunks that streams chunk %d, which it does not have", plan_.resident.size(),
             plan_.streamed[streamed]);
  streaming_ = streamed_;
  forget();
}

void Pager::step(Queues& queues, const std::vector<bool>& wanted) {
  try {
    expect(queues, wanted);
    staying_ = wanted_of(in_place_, wanted);
    queue_step(queues);
  } catch (...) {
    // The events no longer mark the last use of their slots, and some may not survive the next step.
    forget();
    throw;
  }
}

void Pager::expect(Queues& queues, const std::vector<bool>& wanted) {
  LT_REQUIRE(wanted.empty() || wanted.size() == plan_.resident.size(), "got wishes for %zu chunks of %zu",
             wanted.size(), plan_.resident.size());
  std::vector<int> next = wanted_of(streamed_, wanted);
  if (next == streaming_) return;
  start_over(queues);
  streaming_ = std::move(next);
}

void Pager::prefetch(Queues& queues) {
  while (prefetched_ < std::min(streaming_.size(), free_.size())) {
    load(queues, prefetched_);
    ++prefetched_;
  }
}

// A slot is read into only after the write of its previous chunk. If chunks change slots, only the last write of all
// slots guarantees this, and chunks that were read ahead are in the wrong slots.
void Pager::start_over(Queues& queues) {
  queues.wait(Queue::kIn, written_);
  for (const Queues::Event event : loaded_) queues.wait(Queue::kIn, event);
  const size_t slots = free_.size();
  forget();
  free_.assign(slots, Queues::kNone);
  loaded_ = free_;
}

void Pager::set_slots(Queues& queues, size_t slots) {
  if (slots == free_.size()) return;
  if (slots < free_.size()) {
    start_over(queues);
  } else {  // in either ring, chunks that were read ahead are in the first slots
    queues.wait(Queue::kIn, written_);
    written_ = Queues::kNone;
    free_.assign(free_.size(), Queues::kNone);
  }
  free_.resize(slots, Queues::kNone);
  loaded_.resize(slots, Queues::kNone);
}

void Pager::forget() {
  free_.assign(static_cast<size_t>(plan_.slots), Queues::kNone);
  loaded_ = free_;
  written_ = Queues::kNone;
  prefetched_ = 0;
}

// Reads the k-th streamed chunk, which goes through slot k mod slots.
void Pager::load(Queues& queues, size_t k) {
  const size_t slot = k % free_.size();
  queues.wait(Queue::kIn, free_[slot]);
  queues.read(streaming_[k], static_cast<int>(slot));
  loaded_[slot] = queues.record(Queue::kIn);
}

void Pager::queue_step(Queues& queues) {
  const size_t n = streaming_.size(), slots = free_.size(), residents = staying_.size();
  // A share of the resident chunks is stepped before each streamed chunk, and the rest after the last one. If all of
  // them were stepped first, the transfers would be idle once the slots are full, and resident time would add to
  // transfer time instead of overlapping with it.
  size_t done = 0;
  const auto step_residents = [&](size_t share) {
    for (; done * (n + 1) < share * residents; ++done) queues.step(staying_[done], -1);
  };
  // A slot is loaded again `lag` chunks after its chunk was stepped, which gives the write the time of one step; if one
  // thread drives the queues, waiting for the write then delays nothing. With two slots the read would come too late.
  const size_t lag = slots > 2 ? 2 : 1;
  for (size_t k = prefetched_; k < n && k < slots; ++k) load(queues, k);
  prefetched_ = 0;
  for (size_t k = 0; k < n; ++k) {
    const size_t slot = k % slots;
    step_residents(k + 1);
    if (k >= lag && k - lag + slots < n) load(queues, k - lag + slots);
    queues.wait(Queue::kStep, std::exchange(loaded_[slot], Queues::kNone));
    queues.step(streaming_[k], static_cast<int>(slot));
    if (transfer_ == TransferMode::kCopy) {
      queues.wait(Queue::kOut, queues.record(Queue::kStep));
      queues.write(streaming_[k], static_cast<int>(slot));
    }
    written_ = free_[slot] = queues.record(transfer_ == TransferMode::kCopy ? Queue::kOut : Queue::kStep);
  }
  step_residents(n + 1);
}

}  // namespace lowtide
