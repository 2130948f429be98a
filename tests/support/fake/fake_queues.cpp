#include "support/fake/fake_queues.h"

#include "core/error.h"
#include "support/test.h"

namespace lowtide::fake {

FakeQueues::FakeQueues(const TierPlan& plan, std::vector<int64_t> chunk_bytes, const FakeQueuesOptions& options)
    : chunk_bytes_(std::move(chunk_bytes)), options_(options), device_(options.seed) {
  device_.add_stream("in", options.read_rate);  // in the order of Queue
  device_.add_stream("step", options.step_rate);
  device_.add_stream("out", options.write_rate);
  const int64_t near = plan.bytes + options.more_slots * plan.slot_bytes;
  near_ = device_.add_memory("near", near);
  far_ = device_.add_memory("far", std::accumulate(chunk_bytes_.begin(), chunk_bytes_.end(), int64_t{0}));
  step_over_ = device_.new_event();
  for (int slot = 0; slot < plan.slots + options.more_slots; ++slot)
    slots_.push_back(device_.allocate(near_, plan.slot_bytes));
  for (int chunk = 0; chunk < static_cast<int>(chunk_bytes_.size()); ++chunk) {
    const bool resident = plan.resident.at(static_cast<size_t>(chunk));
    home_.push_back({device_.allocate(resident ? near_ : far_, bytes(chunk)), 0, bytes(chunk)});
    device_.host_write(home_.back(), initial(chunk, bytes(chunk)).data());
  }
}

void FakeQueues::begin_step(int64_t number) {
  number_ = number;
  first_[++step_index_ & 1] = next_;
}

std::vector<uint8_t> FakeQueues::contents(int chunk) { return device_.host_read(home_.at(static_cast<size_t>(chunk))); }

std::vector<uint8_t> FakeQueues::initial(int chunk, int64_t bytes) {
  std::vector<uint8_t> content(static_cast<size_t>(bytes));
  mix(content.data(), bytes, chunk, -1);
  return content;
}

void FakeQueues::mix(uint8_t* bytes, int64_t n, int chunk, int64_t number) {
  uint64_t h = 0x9e3779b97f4a7c15ull * static_cast<uint64_t>(chunk + 1) + static_cast<uint64_t>(number + 1);
  for (int64_t i = 0; i < n; ++i) {
    h = (h ^ (h >> 29) ^ bytes[i]) * 0xbf58476d1ce4e5b9ull;
    bytes[i] = static_cast<uint8_t>(h >> 56);
  }
}

void FakeQueues::read(int chunk, int slot) {
  device_.copy(static_cast<int>(Queue::kIn),
               format("read of chunk %d into slot %d, step %lld", chunk, slot, static_cast<long long>(number_)),
               slot_span(chunk, slot), home_.at(static_cast<size_t>(chunk)));
}

void FakeQueues::step(int chunk, int slot) {
  const Span span = slot < 0 ? home_.at(static_cast<size_t>(chunk)) : slot_span(chunk, slot);
  const Span& home = home_.at(static_cast<size_t>(chunk));
  const Span& to = options_.transfer == TransferMode::kHybrid ? home : span;
  device_.launch(static_cast<int>(Queue::kStep),
                 format("step of chunk %d in slot %d, step %lld", chunk, slot, static_cast<long long>(number_)), {span},
                 {to}, span.bytes, [this, span, to, chunk, number = number_] {
                   if (to.region != span.region) std::copy_n(device_.data(span), span.bytes, device_.data(to));
                   mix(device_.data(to), to.bytes, chunk, number);
                 });
  if (!options_.blocking) return;
  device_.record(step_over_, static_cast<int>(Queue::kStep));
  device_.host_wait(step_over_);
}

void FakeQueues::write(int chunk, int slot) {
  device_.copy(static_cast<int>(Queue::kOut),
               format("write of chunk %d from slot %d, step %lld", chunk, slot, static_cast<long long>(number_)),
               home_.at(static_cast<size_t>(chunk)), slot_span(chunk, slot));
}

Queues::Event FakeQueues::record(Queue queue) {
  const size_t parity = static_cast<size_t>(step_index_ & 1);
  std::vector<int>& pool = pools_[parity];
  const size_t i = static_cast<size_t>(next_ - first_[parity]);
  if (i == pool.size()) pool.push_back(device_.new_event());
  device_.record(pool[i], static_cast<int>(queue));
  return next_++;
}

void FakeQueues::wait(Queue queue, Event event) {
  if (event == kNone) return;
  const size_t now = static_cast<size_t>(step_index_ & 1), parity = event >= first_[now] ? now : 1 - now;
  if (event < first_[parity] || event >= next_)
    fail(ErrorKind::kInternal, "wait for event %lld, of which only [%lld, %lld) are valid",
         static_cast<long long>(event), static_cast<long long>(first_[1 - now]), static_cast<long long>(next_));
  const int device_event = pools_[parity][static_cast<size_t>(event - first_[parity])];
  if (options_.blocking)
    device_.host_wait(device_event);
  else
    device_.wait(static_cast<int>(queue), device_event);
}

Span FakeQueues::slot_span(int chunk, int slot) const {
  return {slots_.at(static_cast<size_t>(slot)), 0, bytes(chunk)};
}

}  // namespace lowtide::fake
