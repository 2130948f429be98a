// DeviceStore: steps, and adding parameters.
#include "memory/device_store.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "core/error.h"

namespace lowtide {
namespace {

// The drivers of some devices allocate at most 4 GiB at once.
constexpr int64_t kLargestDeviceChunk = int64_t{2} << 30;

}  // namespace

DeviceStore::DeviceStore(Env& env, Device& device, DeviceStoreOptions options)
    : Store([this](size_t i, std::byte* to) { read_record(i, to); },
            [this](size_t i, const std::byte* from) { write_record(i, from); }),
      env_(env),
      device_(device),
      options_(std::move(options)),
      transfer_(find_transfer_mode(options_.memory.transfer)),
      ring_(device, chunks_),
      queues_(device, chunks_, slots_, ring_) {}

DeviceStore::~DeviceStore() {
  if (queued_ == Queued::kNothing) return;
  try {
    queues_.finish();
  } catch (...) {  // a lost device no longer uses the memory
  }
}

void DeviceStore::add(std::span<const ShapedParam> params) {
  onload();
  catch_up();
  LT_REQUIRE(options_.memory.chunk <= kLargestDeviceChunk, "got chunk=%lld bytes, wanted %lld at most on a device",
             ll(options_.memory.chunk), ll(kLargestDeviceChunk));
  choose_first_budget();
  StorePlan planned = plan(params);
  if (options_.memory.managed) check_managed(planned.plan.tiers[0].resident_bytes);

  // Everything that can fail comes before the first change. Free the slots' memory first; a step allocates it again.
  const size_t before = chunks_.size();
  Index places = index_of(planned.added, before);
  const std::vector<Tier>& tiers = planned.plan.tier;
  const FilePlaces file = places_of(chunks_, planned.chunk_bytes, tiers);
  make_places(file);
  slots_.clear();
  forget_stage();
  pager_.forget();
  Moves moved(before);
  for (size_t i = 0; i < before; ++i)
    if (tiers[i] != chunks_[i].tier()) moved[i] = copy_to(i, tiers[i]);
  std::vector<DeviceRecord> added = make_zeros(planned, file);
  Pager pager(planned.plan.tiers[0], transfer());
  pieces_.reserve(pieces_.size() + places.size());
  chunks_.reserve(before + added.size());
  host_writes_.resize(before + added.size());

  adopt(std::move(moved));
  pieces_.merge(places);
  for (DeviceRecord& record : added) chunks_.push_back(std::move(record));
  pager_ = std::move(pager);
  fit_ring(planned.plan.tiers[1].slots);
}

void DeviceStore::pass(const Work& work, bool changes, int threads, const std::vector<int64_t>& wanted, void* stream) {
  if (chunks_.empty()) return;
  queue_step(work, changes, threads, wanted, stream);
  if (changes) end_step(wanted);
  raise_kept(ring_.take_failure(), "step", kept_bytes());
}

void DeviceStore::queue_step(const Work& work, bool changes, int threads, const std::vector<int64_t>& wanted,
                             void* stream) {
  onload();
  note_what_happened();
  before_queueing();
  take_slots(stream);
  unwritten_ = nullptr;  // a chunk kept in host memory is part of this step
  const std::vector<bool> chunks = due_chunks(wanted);
  begin_ring(chunks, threads);
  queued_ = Queued::kWork;
  if (changes) host_writes_.begin(pager_.plan().streamed);
  queues_.begin_step(stream, transfer() == TransferMode::kHybrid, changes, work);
  try {
    pager_.step(queues_, chunks);
    queues_.end_step();
    ring_.finish();
  } catch (...) {
    break_off();
    throw;
  }
}

// Runs after a step that is complete, so errors here are not errors of the step.
void DeviceStore::end_step(const std::vector<int64_t>& wanted) {
  try {
    give_slots_back();
    if (!pager_.plan().streamed.empty()) host_writes_.end(queues_.record_all());
    const std::vector<int64_t>* const next = order_.next_after(wanted, true);
    if (options_.memory.automatic) follow_residency();
    queued_ = Queued::kWork;
    if (!next || slots_.size() < pager_.slots() || ring_.slots() > 0) return;
    pager_.expect(queues_, due_chunks(*next));
    pager_.prefetch(queues_);
  } catch (...) {  // the next step tries again or reports the error
    break_off();
  }
}

void DeviceStore::visit_in_place(const Work& work) const {
  std::vector<PlacedChunk> placed;
  for (const DeviceRecord& record : chunks_) placed.push_back({record.chunk.pieces, record.memory.data()});
  work(placed);
}

void DeviceStore::follow(void* queue) {
  if (chunks_.empty()) return;
  before_queueing();
  queued_ = Queued::kWork;
  queues_.follow(queue);
}

MemoryReport DeviceStore::report() const {
  MemoryReport report;
  const TierPlan& plan = pager_.plan();
  report.chunks = static_cast<int64_t>(chunks_.size());
  for (const DeviceRecord& record : chunks_)
    (record.kind == MemoryKind::kShared   ? report.managed_bytes
     : record.kind == MemoryKind::kDevice ? report.device_bytes
                                          : report.allocated_bytes) += record.memory.bytes();
  report.kept_bytes = kept_bytes();
  report.allocated_bytes += ring_.bytes() + report.kept_bytes;
  report.disk_bytes = file_ ? file_->bytes() : 0;
  for (const DeviceRecord& record : chunks_)
    if (record.tier() == Tier::kDisk) report.disk_moved_per_step += 2 * record.chunk.bytes;
  report.disk_read_bytes = ring_.traffic().read_bytes;
  report.disk_written_bytes = ring_.traffic().written_bytes;
  report.waited_seconds = ring_.traffic().waited_seconds;
  for (const DeviceBytes& slot : slots_) report.device_bytes += slot.bytes();
  for (const Returning& slot : returning_) report.device_bytes += slot.memory.bytes();
  report.moved_per_step = 2 * plan.streamed_bytes;
  report.read_bytes = queues_.read_bytes();
  report.written_bytes = queues_.written_bytes();
  report.promotions = promotions_;
  report.demotions = demotions_;
  if (!plan.streamed.empty() && transfer_) report.transfer = transfer_mode_name(*transfer_);
  return report;
}

// -- Between steps, the host waits, reads and changes chunks.

void DeviceStore::synchronize() {
  queues_.finish();
  host_writes_.all_happened();
  returning_.clear();
}

// Waits for all queued work, so that the host can read and change chunks.
void DeviceStore::catch_up() {
  stage_.write_back();
  if (queued_ == Queued::kNothing) return;
  queues_.finish();  // if this throws, nothing has changed and the wait must be repeated
  ring_.finish();
  queued_ = Queued::kNothing;
  pager_.forget();  // the host's change makes chunks that were read ahead obsolete
  host_writes_.all_happened();
  returning_.clear();
}

// Makes the host's changes visible to the next queued work, and waits for the remains of a failed step.
void DeviceStore::before_queueing() {
  if (queued_ == Queued::kBrokenStep) catch_up();
  stage_.write_back();
  forget_stage();
}

// Call this after a failure. Waits for the queued work now or, if that also fails, before anything else is queued.
void DeviceStore::break_off() noexcept {
  queued_ = Queued::kBrokenStep;
  try {
    queues_.end_step();
    queues_.write_stepped();  // the caller counts the step as done
  } catch (...) {
  }
  try {
    catch_up();
  } catch (...) {
  }
}

void DeviceStore::note_what_happened() {
  if (queued_ != Queued::kBrokenStep) host_writes_.ask(device_);
}

// Orders transfers with `order` and waits for them unless it returns false.
void DeviceStore::complete(const std::function<bool()>& order) {
  try {
    if (order()) device_.host_wait(device_.record(queues_.transfer_queue()));
  } catch (...) {
    try {
      queues_.finish();  // the caller frees the memory
    } catch (...) {      // a lost device no longer uses the memory
    }
    throw;
  }
}

void DeviceStore::copy_now(void* to, const void* from, int64_t bytes) {
  complete([&] {
    transfer_behind(queue_);
    device_.copy(queues_.transfer_queue(), to, from, bytes);
    return true;
  });
}

// Call this after allocating memory: work on `queue` may still use the memory, and the allocator may fill it there.
void DeviceStore::transfer_behind(void* queue) {
  if (options_.shared_allocator) device_.wait(queues_.transfer_queue(), device_.record(queue));
}

void DeviceStore::check_process() const {
  if (forks() != forks_)
    fail(ErrorKind::kDeviceLost,
         "got state on a device to read in a forked child of its process, which has neither the device nor its pinned "
         "memory; read or save the state before the fork");
}

std::byte* DeviceStore::bring(size_t chunk) {
  check_process();
  if (device_.is_lost()) return bring_from_lost(chunk);
  if (!stage_.holds(chunk)) catch_up();
  const DeviceRecord& record = chunks_[chunk];
  if (record.memory.data() && record.kind != MemoryKind::kDevice) return record.memory.data();
  if (std::byte* const kept = record.kept_data(); kept && record.tier() == Tier::kDisk) return kept;
  return stage_.bring(chunk, env_, stage_memory_, record.chunk.bytes);
}

void DeviceStore::settle() {
  check_process();
  settled_ = !device_.is_lost();
  if (settled_) catch_up();
}

// If no step has changed the chunks since settle(), the host reads the chunk in place if it can, whatever is queued.
void DeviceStore::peek(size_t chunk, std::byte* to) {
  const DeviceRecord& record = chunks_[chunk];
  if (settled_ && record.tier() == Tier::kDisk && !record.kept_data()) {
    file_->read_now(record.file_offset, to, record.chunk.bytes);
    return record.check(to, chunk);
  }
  if (!settled_ || record.kind == MemoryKind::kPinned) {
    const std::byte* const from = !settled_                      ? bring_from_lost(chunk)
                                  : record.tier() == Tier::kDisk ? record.kept_data()
                                                                 : record.memory.data();
    return void(std::memcpy(to, from, static_cast<size_t>(record.chunk.bytes)));
  }
  complete([&] {
    device_.copy(queues_.transfer_queue(), to, record.memory.data(), record.chunk.bytes);
    return true;
  });
}

std::byte* DeviceStore::bring_from_lost(size_t chunk) {
  const DeviceRecord& record = chunks_[chunk];
  const auto param = ll(record.chunk.pieces.front().param);
  if (record.tier() == Tier::kDevice)
    fail(ErrorKind::kDeviceLost, "the device is lost, and with it the state of parameter %lld, which was in its memory",
         param);
  if (host_writes_.may_change(chunk))
    fail(ErrorKind::kDeviceLost,
         "the device is lost, and a step may have been changing the state of parameter %lld, which is in %s, when that "
         "happened",
         param, record.tier() == Tier::kDisk ? "a scratch file" : "host memory");
  if (record.tier() == Tier::kHost) return record.memory.data();
  if (std::byte* const kept = record.kept_data()) return kept;
  return stage_.bring(chunk, env_, stage_memory_, record.chunk.bytes);
}

void DeviceStore::forget_stage() {
  stage_.forget();
  stage_memory_ = Buffer();
}

// -- The ring's slots: the plan's slots, and slots that prefetch() adds for one step
// Allocates as many of the plan's slots as there is memory for. If memory is short, state leaves the device.
void DeviceStore::take_slots(void* stream) {
  const auto wanted = static_cast<size_t>(pager_.plan().slots);
  const int64_t bytes = pager_.plan().slot_bytes;
  slots_.reserve(wanted);
  bool taken = false;
  try {
    for (; slots_.size() < wanted; taken = true) slots_.emplace_back(device_, MemoryKind::kDevice, bytes);
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::kOutOfMemory) throw;
    if (demote_for_slots(bytes * static_cast<int64_t>(wanted - slots_.size()))) return take_slots(stream);
    if (slots_.empty()) throw;
  }
  if (taken) transfer_behind(stream);
  pager_.set_slots(queues_, slots_.size());
}

// Moves state off the device. Returns true if any state moved.
bool DeviceStore::demote_for_slots(int64_t bytes) {
  const TierPlan& plan = pager_.plan();
  const int64_t before = plan.resident_bytes;
  if (before == 0) return false;
  residency_.disturbed();
  try {
    set_device_budget(std::max<int64_t>(plan.bytes - bytes, 0));
  } catch (const Error& error) {  // host memory is short, too
    if (error.kind() == ErrorKind::kDeviceLost) throw;
  }
  return pager_.plan().resident_bytes < before;
}

int64_t DeviceStore::prefetch(int64_t bytes, void* stream) {
  if (ring_.slots() > 0) return 0;  // the host would have to wait for reads of a file
  if (chunks_.empty() || offloaded_ || queued_ == Queued::kBrokenStep || pager_.plan().slots == 0) return 0;
  free_returned();
  const int64_t each = pager_.plan().slot_bytes;
  const bool own = slots_.size() >= static_cast<size_t>(pager_.plan().slots);  // no slots before the first step
  if (own) pager_.set_slots(queues_, slots_.size());
  const size_t most =
      std::min(static_cast<size_t>(std::max<int64_t>(bytes, 0) / each), own ? pager_.slots_wanted() : 0);
  const size_t before = slots_.size();
  slots_.reserve(before + most);
  try {
    // First reuse memory that the last step may still use; since the ring shrank, reads run after that use.
    for (; slots_.size() < before + most && !returning_.empty(); returning_.pop_front())
      slots_.push_back(std::move(returning_.front().memory));
    try {
      while (slots_.size() < before + most) slots_.emplace_back(device_, MemoryKind::kDevice, each);
    } catch (const Error& error) {
      if (error.kind() != ErrorKind::kOutOfMemory) throw;
    }
    if (slots_.size() == before) return 0;
    queued_ = Queued::kWork;
    transfer_behind(stream);
    pager_.set_slots(queues_, slots_.size());
    pager_.prefetch(queues_);
  } catch (...) {
    break_off();  // the next step frees the slots
    throw;
  }
  return static_cast<int64_t>(slots_.size() - before) * each;
}

void DeviceStore::end_prefetch() {
  try {
    give_slots_back();
  } catch (...) {
    break_off();
    throw;
  }
}

void DeviceStore::give_slots_back() {
  free_returned();
  const auto own = static_cast<size_t>(pager_.plan().slots);
  if (slots_.size() <= own) return;
  pager_.set_slots(queues_, own);
  // Free the memory now, because the next forward pass may need it and must not wait for write-back.
  const std::array<void*, 2> queues = queues_.slot_queues();
  const auto is_noted = [&](void* memory) {
    return options_.note_use &&
           std::all_of(queues.begin(), queues.end(), [&](void* queue) { return options_.note_use(memory, queue); });
  };
  std::vector<Device::Event> used;
  for (; slots_.size() > own; slots_.pop_back()) {
    if (is_noted(slots_.back().data())) continue;
    if (used.empty())
      for (void* const queue : queues) used.push_back(device_.record(queue));
    returning_.push_back({used, std::move(slots_.back())});
  }
}

void DeviceStore::free_returned() {
  const auto happened = [&](const Device::Event& event) { return device_.has_happened(event); };
  while (!returning_.empty() && std::all_of(returning_.front().used.begin(), returning_.front().used.end(), happened))
    returning_.pop_front();
}

}  // namespace lowtide
