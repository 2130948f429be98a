// Which chunks are on the device and which in host memory, and moving them.
#include <algorithm>
#include <exception>
#include <utility>

#include "core/error.h"
#include "core/sizes.h"
#include "memory/device_store.h"

namespace lowtide {

std::vector<int64_t> DeviceStore::sizes() const {
  std::vector<int64_t> sizes;
  for (const DeviceRecord& record : chunks_) sizes.push_back(record.chunk.bytes);
  return sizes;
}

// The rest is for activations and gradients that are not there yet.
int64_t DeviceStore::device_budget() const {
  if (budget_) return options_.device_bytes < 0 ? *budget_ : std::min(*budget_, options_.device_bytes);
  if (options_.automatic) return 0;
  if (options_.device_bytes >= 0) return options_.device_bytes;
  const Device::Limits limits = device_.limits();
  if (limits.free >= 0) return report().device_bytes + limits.free / 8 * 7;
  return limits.total < 0 ? -1 : limits.total / 8 * 7;
}

StoreOptions DeviceStore::limits() const {
  StoreOptions out{options_.managed ? -1 : device_budget(), "", options_.host_bytes, options_.chunk_bytes, true};
  out.in_place = transfer_ == TransferMode::kZeroCopy;
  out.at_least_slots = !options_.managed && (options_.automatic || budget_);
  out.ram_limit = options_.device_bytes;
  return out;
}

StorePlan DeviceStore::plan(std::span<const ShapedParam> params) {
  StorePlan planned = plan_store(limits(), sizes(), params);
  if (transfer_ || planned.plan.streamed.empty()) return planned;
  if (device_.steps_pinned() && options_.choose_transfer_mode) {
    device_.host_wait(device_.record(queue_));  // what runs there now is not to be measured, too
    transfer_ = options_.choose_transfer_mode();
  } else {
    transfer_ = TransferMode::kCopy;
  }
  return transfer_ == TransferMode::kZeroCopy ? plan_store(limits(), sizes(), params) : planned;
}

MemoryKind DeviceStore::kind_of(bool resident) const {
  return options_.managed ? MemoryKind::kShared : resident ? MemoryKind::kDevice : MemoryKind::kPinned;
}

DeviceBytes DeviceStore::allocate(bool resident, int64_t bytes) { return {device_, kind_of(resident), bytes}; }

DeviceBytes DeviceStore::make_zero(const Chunk& chunk, bool resident) {
  DeviceBytes memory = allocate(resident, chunk.bytes);
  if (resident && !options_.managed) {
    if (static_cast<int64_t>(stage_.bytes()) < chunk.bytes) stage_ = Buffer(env_, static_cast<size_t>(chunk.bytes));
    fill_zero(chunk, stage_.data());
    copy_now(memory.data(), stage_.data(), chunk.bytes);
  } else {
    fill_zero(chunk, memory.data());
  }
  return memory;
}

// A driver that has to evict what a step will need again moves everything; some hang. What this store has already may
// or may not have been moved to the device: neither may it be counted as free twice.
void DeviceStore::check_managed(int64_t bytes) {
  const Device::Limits limits = device_.limits();
  int64_t most = limits.total;
  if (limits.free >= 0) {
    const int64_t held = report().managed_bytes;
    if (held == 0) managed_room_ = limits.free;
    most = std::max<int64_t>(std::min(managed_room_, limits.free + held) - Residency::margin(limits.total), 0);
  }
  if (options_.device_bytes >= 0) most = most < 0 ? options_.device_bytes : std::min(most, options_.device_bytes);
  LT_REQUIRE(most < 0 || bytes <= most,
             "%s of state do not fit in %s of device memory, and managed memory must not exceed it; give less managed "
             "state, or a budget without managed memory, which moves only what does not fit",
             format_bytes(bytes).c_str(), format_bytes(most).c_str());
}

// What leaves the device goes first, all or nothing; then what comes, as far as there is memory.
void DeviceStore::move_to(const Plan& plan) {
  catch_up();
  const std::vector<int64_t> bytes = sizes();
  const int slots = transfer_ == TransferMode::kZeroCopy ? 0 : plan.slots > 0 ? plan.slots : kOverlappingSlots;
  const auto pager_for = [&](std::vector<bool> resident) {
    return Pager(plan_keeping(std::move(resident), bytes, slots), transfer_.value_or(TransferMode::kCopy));
  };
  std::vector<bool> resident = pager_.plan().resident;
  const auto copied = [&](size_t i, bool to_device) {
    DeviceBytes memory = allocate(to_device, bytes[i]);
    copy_now(memory.data(), chunks_[i].memory.data(), bytes[i]);
    resident[i] = to_device;
    return memory;
  };
  const auto commit = [&](std::vector<DeviceBytes>& moved, Pager pager) {
    for (size_t i = 0; i < moved.size(); ++i)
      if (moved[i].data()) chunks_[i].memory = std::move(moved[i]);
    const bool keeps_slots = static_cast<int>(slots_.size()) == pager.plan().slots &&
                             (slots_.empty() || slots_[0].bytes() == pager.plan().slot_bytes);
    if (!keeps_slots) slots_.clear();
    forget_staged();
    pager_ = std::move(pager);
  };
  bool down = false, up = false;
  std::vector<DeviceBytes> moved(chunks_.size());
  for (size_t i = 0; i < chunks_.size(); ++i)
    if (resident[i] && !plan.resident[i]) moved[i] = copied(i, false), down = true;
  slots_.clear();
  commit(moved, pager_for(resident));
  demotions_ += down;

  moved.clear();
  moved.resize(chunks_.size());
  std::exception_ptr error;
  try {
    for (int i = 0; i < plan.slots; ++i) slots_.push_back(allocate(true, plan.slot_bytes));  // they must have room, too
    for (size_t i = 0; i < chunks_.size(); ++i)
      if (!resident[i] && plan.resident[i]) moved[i] = copied(i, true), up = true;
  } catch (const Error& short_of) {
    if (short_of.kind() != ErrorKind::kOutOfMemory) error = std::current_exception();
  }
  commit(moved, pager_for(resident));
  promotions_ += up;
  if (error) std::rethrow_exception(error);
}

void DeviceStore::set_device_budget(int64_t bytes) {
  LT_REQUIRE(bytes >= 0, "got a budget of %lld bytes of device memory, wanted 0 or more",
             static_cast<long long>(bytes));
  onload();
  const std::optional<int64_t> before = std::exchange(budget_, bytes);
  if (options_.managed || chunks_.empty()) return;
  try {
    const Plan now = plan({}).plan;
    if (now.resident != pager_.plan().resident || now.slots != pager_.plan().slots) move_to(now);
  } catch (...) {
    budget_ = before;
    throw;
  }
}

int64_t DeviceStore::demote(int64_t bytes) {
  if (bytes <= 0 || options_.managed || chunks_.empty() || !offloaded_.empty()) return 0;
  const int64_t before = report().device_bytes;
  residency_.disturbed();
  catch_up();
  set_device_budget(std::max<int64_t>(before - bytes, 0));
  if (before - report().device_bytes < bytes) slots_.clear(), pager_.forget();  // the next step takes them again
  return std::max<int64_t>(before - report().device_bytes, 0);
}

void DeviceStore::follow_residency() {
  const Device::Limits limits = device_.limits();
  const int64_t held = report().device_bytes;
  Residency::Seen seen{limits.free, limits.total, held, pager_.plan().total_bytes};
  if (room_ >= 0)
    seen.free = std::max<int64_t>(room_ - held, 0);
  else if (seen.free < 0 && limits.total >= 0)
    seen.free = std::max<int64_t>(limits.total / 8 * 7 - held, 0);
  const std::optional<int64_t> budget = residency_.after_step(seen);
  if (!budget || (*budget < held && pager_.plan().resident_bytes == 0)) return;
  try {
    set_device_budget(*budget);
  } catch (...) {  // the step is done; what could not be moved has stayed
  }
}

void DeviceStore::check_offload() const {
  const Plan& plan = pager_.plan();
  LT_REQUIRE(options_.host_bytes < 0 || plan.total_bytes <= options_.host_bytes,
             "got a host memory budget of %lld bytes, wanted at least %lld to put all state there",
             static_cast<long long>(options_.host_bytes), static_cast<long long>(plan.total_bytes));
}

void DeviceStore::offload() {
  if (!offloaded_.empty() || options_.managed || chunks_.empty()) return;
  check_offload();
  catch_up();
  const Plan& plan = pager_.plan();
  std::vector<DeviceBytes> offloaded(chunks_.size());
  for (size_t i = 0; i < chunks_.size(); ++i) {
    if (!plan.resident[i]) continue;
    offloaded[i] = allocate(false, chunks_[i].chunk.bytes);
    copy_now(offloaded[i].data(), chunks_[i].memory.data(), chunks_[i].chunk.bytes);
  }
  offloaded_ = std::move(offloaded);
  for (size_t i = 0; i < chunks_.size(); ++i)
    if (plan.resident[i]) chunks_[i].memory = DeviceBytes();
  slots_.clear();
  pager_.forget();
  forget_staged();
}

void DeviceStore::onload() {
  if (offloaded_.empty() || device_.is_lost()) return;
  std::vector<DeviceBytes> back(chunks_.size());
  for (size_t i = 0; i < chunks_.size(); ++i) {
    if (!offloaded_[i].data()) continue;
    back[i] = allocate(true, chunks_[i].chunk.bytes);
    copy_now(back[i].data(), offloaded_[i].data(), chunks_[i].chunk.bytes);
  }
  for (size_t i = 0; i < chunks_.size(); ++i)
    if (back[i].data()) chunks_[i].memory = std::move(back[i]);
  offloaded_.clear();
}

int64_t DeviceStore::offloaded_bytes() const {
  int64_t bytes = 0;
  for (const DeviceBytes& memory : offloaded_) bytes += memory.bytes();
  return bytes;
}

}  // namespace lowtide
