#include "memory/device_store.h"

#include <algorithm>
#include <utility>

#include "core/error.h"
#include "core/sizes.h"

namespace lowtide {
namespace {

// Drivers of some devices allocate no more than 4 GiB at a time.
constexpr int64_t kLargestDeviceChunk = int64_t{2} << 30;

}  // namespace

DeviceStore::DeviceStore(Env& env, Device& device, const DeviceStoreOptions& options)
    : env_(env), device_(device), options_(options), lanes_(device, chunks_, slots_) {}

DeviceStore::~DeviceStore() {
  if (!queued_) return;
  try {
    lanes_.finish();
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
  std::vector<int64_t> sizes;
  for (const DeviceRecord& record : chunks_) sizes.push_back(record.chunk.bytes);
  const StoreOptions limits{options_.managed ? -1 : device_budget(), "", options_.host_bytes, options_.chunk_bytes,
                            true};
  StorePlan planned = plan_store(limits, std::move(sizes), params);
  if (options_.managed) check_managed(planned.plan.total_bytes);

  // Everything that can fail comes before the first change. The slots' room first: a step takes it again.
  const size_t before = chunks_.size();
  Index places = index_of(planned.added, before);
  Pager pager(planned.plan);
  slots_.clear();
  forget_staged();
  pager_.forget();
  std::vector<DeviceBytes> moved(before);
  for (size_t i = 0; i < before; ++i) {
    const bool resident = planned.plan.resident[i];
    if (resident == pager_.plan().resident[i]) continue;
    moved[i] = DeviceBytes(device_, kind_of(resident), chunks_[i].chunk.bytes);
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

  for (size_t i = 0; i < before; ++i)
    if (moved[i].data()) chunks_[i].memory = std::move(moved[i]);
  pieces_.merge(places);
  for (DeviceRecord& record : added) chunks_.push_back(std::move(record));
  pager_ = std::move(pager);
}

// The rest is for activations and gradients that are not there yet.
int64_t DeviceStore::device_budget() const {
  if (options_.device_bytes >= 0) return options_.device_bytes;
  const Device::Limits limits = device_.limits();
  if (limits.free >= 0) return report().device_bytes + limits.free / 8 * 7;
  return limits.total < 0 ? -1 : limits.total / 8 * 7;
}

MemoryKind DeviceStore::kind_of(bool resident) const {
  return options_.managed ? MemoryKind::kShared : resident ? MemoryKind::kDevice : MemoryKind::kPinned;
}

DeviceBytes DeviceStore::make_zero(const Chunk& chunk, bool resident) {
  DeviceBytes memory(device_, kind_of(resident), chunk.bytes);
  if (resident && !options_.managed) {
    if (static_cast<int64_t>(stage_.bytes()) < chunk.bytes) stage_ = Buffer(env_, static_cast<size_t>(chunk.bytes));
    fill_zero(chunk, stage_.data());
    copy_now(memory.data(), stage_.data(), chunk.bytes);
  } else {
    fill_zero(chunk, memory.data());
  }
  return memory;
}

// A driver that has to evict what a step will need again moves everything; some hang.
void DeviceStore::check_managed(int64_t bytes) const {
  const int64_t total = device_.limits().total;
  const int64_t most = options_.device_bytes < 0 ? total : options_.device_bytes;
  LT_REQUIRE(most < 0 || bytes <= most,
             "%s of state do not fit in %s of device memory, and managed memory must not exceed it; give less managed "
             "state, or a budget without managed memory, which moves only what does not fit",
             format_bytes(bytes).c_str(), format_bytes(most).c_str());
}

void DeviceStore::step(const Work& work, int, const std::vector<int64_t>& wanted, void* stream) {
  if (chunks_.empty()) return;
  onload();
  if (unfinished_) catch_up();
  write_changed();
  forget_staged();
  slots_.resize(static_cast<size_t>(pager_.plan().slots));
  for (DeviceBytes& slot : slots_)
    if (!slot.data()) slot = DeviceBytes(device_, MemoryKind::kDevice, pager_.plan().slot_bytes);
  const std::vector<bool> chunks = chunks_of(wanted, chunks_.size());
  queued_ = true;
  lanes_.begin_step(stream,
                    [&](int chunk, std::byte* memory) { work(chunk_at(static_cast<size_t>(chunk)).pieces, memory); });
  try {
    if (options_.managed)
      step_managed(chunks);
    else
      pager_.step(lanes_, chunks);
    lanes_.end_step();
  } catch (...) {
    abandon_step();
    throw;
  }
  try {
    pager_.prefetch(lanes_);
  } catch (...) {  // the next step queues it again, or says what is wrong
    abandon_step();
  }
}

// Waits for what is queued: now or, if that fails too, before anything else is.
void DeviceStore::abandon_step() noexcept {
  unfinished_ = true;
  try {
    lanes_.end_step();
    lanes_.write_stepped();  // the caller counts it as done
  } catch (...) {
  }
  try {
    catch_up();
  } catch (...) {
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
      device_.prefetch(lanes_.transfer_queue(), chunks_[chunk].memory.data(), chunks_[chunk].chunk.bytes);
  };
  size_t chunk = next(0);
  prefetch(chunk);
  while (chunk < chunks_.size()) {
    const size_t after = next(chunk + 1);
    prefetch(after);
    lanes_.step(static_cast<int>(chunk), -1);
    chunk = after;
  }
}

void DeviceStore::catch_up() {
  write_changed();
  if (!queued_) return;
  lanes_.finish();  // if it throws, all is as it was: it has to be waited for again
  queued_ = unfinished_ = false;
  pager_.forget();  // what was read ahead is out of date when the host has changed it
}

void DeviceStore::copy_now(void* to, const void* from, int64_t bytes) {
  try {
    device_.copy(lanes_.transfer_queue(), to, from, bytes);
    device_.host_wait(device_.record(lanes_.transfer_queue()));
  } catch (...) {
    try {
      lanes_.finish();  // the caller frees the memory
    } catch (...) {     // a device that is lost uses nothing
    }
    throw;
  }
}

// Between steps: the chunk's memory if that is of the host, or a copy of it.
std::byte* DeviceStore::bring(size_t chunk) {
  onload();
  DeviceRecord& record = chunks_[chunk];
  if (in_stage_ == static_cast<int64_t>(chunk)) return stage_.data();
  catch_up();
  if (options_.managed || !pager_.plan().resident[chunk]) return record.memory.data();
  in_stage_ = -1;
  if (static_cast<int64_t>(stage_.bytes()) < record.chunk.bytes)
    stage_ = Buffer(env_, static_cast<size_t>(record.chunk.bytes));
  copy_now(stage_.data(), record.memory.data(), record.chunk.bytes);
  in_stage_ = static_cast<int64_t>(chunk);
  return stage_.data();
}

void DeviceStore::put_back(size_t chunk) {
  if (in_stage_ == static_cast<int64_t>(chunk)) stage_changed_ = true;
}

void DeviceStore::write_changed() {
  if (!stage_changed_) return;
  const DeviceRecord& record = chunks_[static_cast<size_t>(in_stage_)];
  copy_now(record.memory.data(), stage_.data(), record.chunk.bytes);
  stage_changed_ = false;
}

void DeviceStore::forget_staged() {
  in_stage_ = -1;
  stage_ = Buffer();
}

void DeviceStore::check_offload() const {
  const Plan& plan = pager_.plan();
  LT_REQUIRE(options_.host_bytes < 0 || plan.total_bytes <= options_.host_bytes,
             "got a host memory budget of %lld bytes, wanted at least %lld to put all state there",
             static_cast<long long>(options_.host_bytes), static_cast<long long>(plan.total_bytes));
}

void DeviceStore::offload() {
  if (!parked_.empty() || options_.managed || chunks_.empty()) return;
  check_offload();
  catch_up();
  const Plan& plan = pager_.plan();
  std::vector<DeviceBytes> parked(chunks_.size());
  for (size_t i = 0; i < chunks_.size(); ++i) {
    if (!plan.resident[i]) continue;
    parked[i] = DeviceBytes(device_, MemoryKind::kPinned, chunks_[i].chunk.bytes);
    copy_now(parked[i].data(), chunks_[i].memory.data(), chunks_[i].chunk.bytes);
  }
  parked_ = std::move(parked);
  for (size_t i = 0; i < chunks_.size(); ++i)
    if (plan.resident[i]) chunks_[i].memory = DeviceBytes();
  slots_.clear();
  forget_staged();
}

void DeviceStore::onload() {
  if (parked_.empty()) return;
  std::vector<DeviceBytes> back(chunks_.size());
  for (size_t i = 0; i < chunks_.size(); ++i) {
    if (!parked_[i].data()) continue;
    back[i] = DeviceBytes(device_, MemoryKind::kDevice, chunks_[i].chunk.bytes);
    copy_now(back[i].data(), parked_[i].data(), chunks_[i].chunk.bytes);
  }
  for (size_t i = 0; i < chunks_.size(); ++i)
    if (back[i].data()) chunks_[i].memory = std::move(back[i]);
  parked_.clear();
}

int64_t DeviceStore::offloaded_bytes() const {
  int64_t bytes = 0;
  for (const DeviceBytes& memory : parked_) bytes += memory.bytes();
  return bytes;
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
  report.resident_bytes += offloaded_bytes();
  report.moved_per_step = plan.read_bytes + plan.written_bytes;
  report.read_bytes = lanes_.read_bytes();
  report.written_bytes = lanes_.written_bytes();
  return report;
}

}  // namespace lowtide
