// Steps, and what parameters are added with.
#include "memory/device_store.h"

#include "core/error.h"

namespace lowtide {
namespace {

// Drivers of some devices allocate no more than 4 GiB at a time.
constexpr int64_t kLargestDeviceChunk = int64_t{2} << 30;

}  // namespace

DeviceStore::DeviceStore(Env& env, Device& device, DeviceStoreOptions options)
    : env_(env),
      device_(device),
      options_(std::move(options)),
      transfer_(options_.transfer),
      queues_(device, chunks_, slots_) {}

DeviceStore::~DeviceStore() {
  if (!queued_) return;
  try {
    queues_.finish();
  } catch (...) {  // a device that is lost uses nothing
  }
}

void DeviceStore::add(std::span<const ShapedParam> params) {
  onload();
  catch_up();
  LT_REQUIRE(options_.chunk_bytes <= kLargestDeviceChunk, "got chunk_bytes=%lld, wanted %lld at most on a device",
             static_cast<long long>(options_.chunk_bytes), static_cast<long long>(kLargestDeviceChunk));
  for (const ShapedParam& p : params)
    LT_REQUIRE(!has(p.param), "got parameter %lld twice", static_cast<long long>(p.param));
  StorePlan planned = plan(params);
  if (options_.managed) check_managed(planned.plan.total_bytes);

  // Everything that can fail comes before the first change. The slots' room first: a step takes it again.
  const size_t before = chunks_.size();
  Index places = index_of(planned.added, before);
  Pager pager(planned.plan, transfer_.value_or(TransferMode::kCopy));
  slots_.clear();
  forget_staged();
  pager_.forget();
  std::vector<DeviceBytes> moved(before);
  for (size_t i = 0; i < before; ++i) {
    const bool resident = planned.plan.resident[i];
    if (resident == pager_.plan().resident[i]) continue;
    moved[i] = allocate(resident, chunks_[i].chunk.bytes);
    copy_now(moved[i].data(), chunks_[i].memory.data(), chunks_[i].chunk.bytes);
  }
  std::vector<DeviceRecord> added(planned.added.size());
  for (size_t i = 0; i < added.size(); ++i) {
    added[i].chunk = std::move(planned.added[i]);
    added[i].memory = make_zero(added[i].chunk, planned.plan.resident[before + i]);
  }
  stage_ = Buffer();
  pieces_.reserve(pieces_.size() + places.size());
  chunks_.reserve(before + added.size());
  writing_.assign(before + added.size(), false);

  for (size_t i = 0; i < before; ++i)
    if (moved[i].data()) chunks_[i].memory = std::move(moved[i]);
  pieces_.merge(places);
  for (DeviceRecord& record : added) chunks_.push_back(std::move(record));
  pager_ = std::move(pager);
}

void DeviceStore::pass(const Work& work, const std::vector<int64_t>& wanted, void* stream, bool changes) {
  onload();
  if (unfinished_) catch_up();
  note_what_happened();
  write_changed();
  forget_staged();
  take_slots(stream);
  const std::vector<bool> chunks = chunks_of(wanted, chunks_.size());
  const bool in_place = transfer_ == TransferMode::kZeroCopy;
  queued_ = true;
  if (changes)
    for (const int chunk : pager_.plan().streamed) writing_[static_cast<size_t>(chunk)] = true;
  std::vector<PlacedChunk> placed;
  queues_.begin_step(
      stream, transfer_ == TransferMode::kHybrid, changes, [&](std::span<const DeviceQueues::Target> targets) {
        placed.clear();
        for (const DeviceQueues::Target& target : targets)
          placed.push_back({chunk_at(static_cast<size_t>(target.chunk)).pieces, target.memory, target.write_offset});
        work(placed);
        for (const DeviceQueues::Target& target : targets)
          if (const auto i = static_cast<size_t>(target.chunk); in_place && !pager_.plan().resident[i])
            queues_.count_moved(chunks_[i].chunk.bytes, changes ? chunks_[i].chunk.bytes : 0);
      });
  try {
    if (options_.managed)
      step_managed(chunks);
    else
      pager_.step(queues_, chunks);
    queues_.end_step();
  } catch (...) {
    abandon_step();
    throw;
  }
}

void DeviceStore::look(const Work& work, int, const std::vector<int64_t>& wanted, void* stream) {
  if (chunks_.empty()) return;
  pass(work, wanted, stream, false);
}

void DeviceStore::step(const Work& work, int, const std::vector<int64_t>& wanted, void* stream) {
  if (chunks_.empty()) return;
  pass(work, wanted, stream, true);
  try {
    give_slots_back();
    last_step_ = queues_.record_all();
    if (options_.automatic) follow_residency();
    queued_ = true;
    if (slots_.size() >= pager_.slots()) pager_.prefetch(queues_);
  } catch (...) {  // the next step queues it again, or says what is wrong
    abandon_step();
  }
}

// Each chunk is asked for one ahead of its step.
void DeviceStore::step_managed(const std::vector<bool>& wanted) {
  const auto next = [&](size_t chunk) {
    while (chunk < chunks_.size() && !wanted.empty() && !wanted[chunk]) ++chunk;
    return chunk;
  };
  const auto prefetch = [&](size_t chunk) {
    if (chunk < chunks_.size())
      device_.prefetch(queues_.transfer_queue(), chunks_[chunk].memory.data(), chunks_[chunk].chunk.bytes);
  };
  size_t chunk = next(0);
  prefetch(chunk);
  while (chunk < chunks_.size()) {
    const size_t after = next(chunk + 1);
    prefetch(after);
    queues_.step(static_cast<int>(chunk), -1);
    queues_.step_waiting();
    chunk = after;
  }
}

void DeviceStore::visit_in_place(const Work& work) const {
  std::vector<PlacedChunk> placed;
  for (const DeviceRecord& record : chunks_) placed.push_back({record.chunk.pieces, record.memory.data(), 0});
  work(placed);
}

void DeviceStore::follow(void* queue) {
  if (chunks_.empty()) return;
  if (unfinished_) catch_up();
  write_changed();
  forget_staged();
  queued_ = true;
  queues_.follow(queue);
}

StoreReport DeviceStore::report() const {
  StoreReport report;
  const Plan& plan = pager_.plan();
  report.chunks = static_cast<int64_t>(chunks_.size());
  for (size_t i = 0; i < chunks_.size(); ++i)
    (options_.managed   ? report.managed_bytes
     : plan.resident[i] ? report.device_bytes
                        : report.resident_bytes) += chunks_[i].memory.bytes();
  for (const DeviceBytes& slot : slots_) report.device_bytes += slot.bytes();
  for (const Returning& slot : returning_) report.device_bytes += slot.memory.bytes();
  report.resident_bytes += offloaded_bytes();
  report.moved_per_step = plan.read_bytes + plan.written_bytes;
  report.read_bytes = queues_.read_bytes();
  report.written_bytes = queues_.written_bytes();
  report.promotions = promotions_;
  report.demotions = demotions_;
  if (!plan.streamed.empty() && transfer_) report.transfer = transfer_mode_name(*transfer_);
  return report;
}

}  // namespace lowtide
