#include "memory/state_store.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace lowtide {

StateStore::StateStore(Env& env, StoreOptions options)
    : Store([this](size_t chunk, std::byte* to) { chunks_[chunk].read(*file_, chunk, to); },
            [this](size_t chunk, const std::byte* from) { write_staged(chunk, from); }),
      env_(env),
      options_(std::move(options)) {}

void StateStore::add(std::span<const ShapedParam> params) {
  drop_prefetched();
  stage_.write_back();
  StorePlan planned = plan_store(options_, sizes_of(chunks_), params);
  std::vector<Chunk>& cut = planned.added;
  const TierPlan& plan = planned.plan.tiers.front();

  // Everything that can fail comes before the first change.
  std::vector<ChunkRecord> added(cut.size());
  const size_t before = chunks_.size();
  Index places = index_of(cut, before);
  for (size_t i = 0; i < cut.size(); ++i) {
    added[i].chunk = std::move(cut[i]);
    if (!plan.resident[before + i]) continue;
    added[i].memory = Buffer(env_, static_cast<size_t>(added[i].chunk.bytes));
    fill_zero(added[i].chunk, added[i].memory.data());
  }
  std::vector<Buffer> slots(static_cast<size_t>(plan.slots));
  for (Buffer& slot : slots) slot = Buffer(env_, static_cast<size_t>(plan.slot_bytes));
  const FilePlaces file = places_of(chunks_, planned.chunk_bytes, planned.plan.tier);
  // The plan counts streamed chunks; chunks that have since become resident still have places in the file.
  if (plan.slots > 0) {
    file.check(options_.memory.disk_limit);
    file.fit(file_, env_, options_.memory.disk);
  }

  // Allocations for the bookkeeping can fail, too.
  pieces_.reserve(pieces_.size() + places.size());
  chunks_.reserve(before + added.size());
  auto queues = std::make_unique<FileQueues>(env_, file_.get(), chunks_, slots_, plan.slot_bytes, traffic_);
  Pager pager(plan);

  // Write new chunks first: if one cannot be written, nothing is lost.
  for (size_t i = 0; i < added.size(); ++i) {
    added[i].file_offset = file.offsets[before + i];
    if (plan.resident[before + i]) continue;
    fill_zero(added[i].chunk, slots[0].data());
    added[i].write(*file_, before + i, slots[0].data());
  }
  // Then move existing chunks. Memory is freed only after the last possible failure: until then the old plan must find
  // its resident chunks, and it treats other chunks in memory as records that could not be written.
  for (size_t i = 0; i < before; ++i) {
    ChunkRecord& record = chunks_[i];
    if (plan.resident[i] && !record.memory.data()) {
      Buffer memory(env_, static_cast<size_t>(record.chunk.bytes));
      record.read(*file_, i, memory.data());
      record.memory = std::move(memory);
    }
    if (!plan.resident[i] && record.memory.data()) {
      record.file_offset = file.offsets[i];
      record.write(*file_, i, record.memory.data());
    }
  }
  for (size_t i = 0; i < before; ++i)
    if (!plan.resident[i]) chunks_[i].memory = Buffer();

  stage_.forget();
  pieces_.merge(places);
  for (ChunkRecord& record : added) chunks_.push_back(std::move(record));
  slots_ = std::move(slots);
  queues_ = std::move(queues);
  pager_ = std::move(pager);
}

void StateStore::pass(const Work& work, bool changes, int threads, const std::vector<int64_t>& wanted, void*) {
  if (!queues_) return;
  stage_.write_back();
  stage_.forget();
  unwritten_ = nullptr;  // a chunk kept in RAM is part of this step
  const std::vector<bool> chunks = due_chunks(wanted);
  queues_->begin_step(work, threads, changes);
  try {
    pager_.step(*queues_, chunks);
  } catch (...) {
    queues_->finish();
    throw;
  }
  std::exception_ptr failure;
  try {
    if (const std::vector<int64_t>* const next = order_.next_after(wanted, changes)) {
      pager_.expect(*queues_, due_chunks(*next));
      pager_.prefetch(*queues_);
    }
    failure = queues_->finish_writes();
  } catch (...) {  // the next step reads the chunk again and reports the error
    failure = queues_->finish();
    pager_.forget();
  }
  raise_kept(failure, "step", kept_bytes());
}

// Writes the host's changes of a chunk. If the chunk cannot be written, it stays in RAM; see check_written().
void StateStore::write_staged(size_t chunk, const std::byte* from) {
  try {
    chunks_[chunk].write(*file_, chunk, from);
  } catch (...) {
    note_unwritten();
    chunks_[chunk].memory = std::exchange(slots_[0], Buffer());
    stage_.forget();
  }
}

// Call this before the slots are used for something else.
void StateStore::drop_prefetched() {
  if (!pager_.has_prefetched()) return;
  queues_->finish();
  pager_.forget();
}

// Returns, between steps, the chunk's memory or a copy of its record in the first slot.
std::byte* StateStore::bring(size_t chunk) {
  drop_prefetched();
  if (std::byte* const memory = chunks_[chunk].memory.data()) return memory;
  return stage_.bring(chunk, env_, slots_[0], pager_.plan().slot_bytes);
}

// Does not use the file's queue of transfers, in which transfers of a step may be running.
void StateStore::peek(size_t chunk, std::byte* to) {
  const ChunkRecord& record = chunks_[chunk];
  if (const std::byte* const memory = record.memory.data())
    return void(std::memcpy(to, memory, static_cast<size_t>(record.chunk.bytes)));
  file_->read_now(record.file_offset, to, record.chunk.bytes);
  record.check(to, chunk);
}

std::vector<const Buffer*> StateStore::shrink() {
  drop_prefetched();
  stage_.write_back();
  stage_.forget();
  for (Buffer& slot : slots_) slot = Buffer();
  std::vector<const Buffer*> buffers;
  for (const ChunkRecord& record : chunks_)
    if (record.memory.data()) buffers.push_back(&record.memory);
  return buffers;
}

MemoryReport StateStore::report() const {
  MemoryReport report;
  const TierPlan& plan = pager_.plan();
  report.chunks = static_cast<int64_t>(chunks_.size());
  report.kept_bytes = kept_bytes();
  report.allocated_bytes = plan.resident_bytes + report.kept_bytes;
  for (const Buffer& slot : slots_) report.allocated_bytes += static_cast<int64_t>(slot.bytes());
  report.disk_bytes = file_ ? file_->bytes() : 0;
  report.moved_per_step = 2 * plan.streamed_bytes;
  report.read_bytes = traffic_.read_bytes;
  report.written_bytes = traffic_.written_bytes;
  report.disk_moved_per_step = report.moved_per_step;
  report.disk_read_bytes = report.read_bytes;
  report.disk_written_bytes = report.written_bytes;
  report.waited_seconds = traffic_.waited_seconds;
  return report;
}

}  // namespace lowtide
