// Decides which chunks are on the device, in host memory and on disk, and moves them.
#include <algorithm>
#include <cstring>
#include <exception>
#include <utility>

#include "core/error.h"
#include "core/sizes.h"
#include "memory/device_store.h"

namespace lowtide {

// Without a limit, an eighth of the device is left for activations and gradients that do not exist yet.
int64_t DeviceStore::device_budget() const {
  const int64_t given = options_.memory.device;
  if (budget_) return given < 0 ? *budget_ : std::min(*budget_, given);
  if (options_.memory.automatic) return 0;
  if (given >= 0) return given;
  const Device::Limits limits = device_.limits();
  if (limits.free >= 0) return report().device_bytes + limits.free / 8 * 7;
  return limits.total < 0 ? -1 : limits.total / 8 * 7;
}

// Chooses the budget for state that a step creates, because the needs of activations and gradients are known by then.
void DeviceStore::choose_first_budget() {
  if (!options_.memory.automatic || !room_) return;
  if (const std::optional<int64_t> budget = Residency::before_new_state(seen())) budget_ = budget;
}

StoreOptions DeviceStore::options() const {
  StoreOptions out{options_.memory, true, transfer() == TransferMode::kZeroCopy};
  if (options_.memory.managed)
    out.memory.device = -1;
  else if (options_.memory.automatic || budget_)
    out.device_now = device_budget();
  else
    out.memory.device = device_budget();
  return out;
}

StorePlan DeviceStore::plan(std::span<const ShapedParam> params) {
  StorePlan planned = plan_store(options(), sizes_of(chunks_), params);
  if (transfer_ || planned.plan.tiers[0].streamed.empty()) return planned;
  const bool measures = device_.steps_pinned() && options_.choose_transfer_mode;
  if (measures) device_.host_wait(device_.record(queue_));  // work that is running must not disturb the measurement
  transfer_ = measures ? options_.choose_transfer_mode() : TransferMode::kCopy;
  return *transfer_ == TransferMode::kZeroCopy ? plan_store(options(), sizes_of(chunks_), params) : planned;
}

// Returns the new chunks of a plan, with states that decode to zero. With `automatic` residency, if device memory turns
// out to be short, chunks planned for the device start on the host, and the plan is changed to say so.
std::vector<DeviceRecord> DeviceStore::make_zeros(StorePlan& planned, const FilePlaces& places) {
  std::vector<DeviceRecord> added;
  const size_t before = chunks_.size();
  const std::vector<Tier>& tiers = planned.plan.tier;
  const auto first = tiers.begin() + static_cast<ptrdiff_t>(before);
  const bool fills = !options_.memory.managed && std::find(first, tiers.end(), Tier::kDevice) != tiers.end();
  bool is_full = false;
  complete([&] {
    for (const Chunk& chunk : planned.added) {
      const size_t number = before + added.size();
      const Tier tier = is_full ? Tier::kHost : tiers[number];
      try {
        added.push_back(make_zero(chunk, tier, number, places.offsets[number]));
      } catch (const Error& error) {
        if (error.kind() != ErrorKind::kOutOfMemory || !options_.memory.automatic || tier != Tier::kDevice) throw;
        is_full = true;
        added.push_back(make_zero(chunk, Tier::kHost, number, -1));
      }
    }
    return fills;
  });
  if (is_full) {
    TierPlan& plan = planned.plan.tiers[0];
    std::vector<bool> resident = plan.resident;
    for (size_t i = 0; i < added.size(); ++i) resident[before + i] = added[i].kind == MemoryKind::kDevice;
    plan = plan_keeping(std::move(resident), planned.chunk_bytes, ring_of(plan));
  }
  return added;
}

DeviceRecord DeviceStore::make_zero(const Chunk& chunk, Tier tier, size_t number, int64_t file_offset) {
  const MemoryKind kind = options_.memory.managed ? MemoryKind::kShared
                          : tier == Tier::kDevice ? MemoryKind::kDevice
                                                  : MemoryKind::kPinned;
  DeviceRecord record{{chunk, file_offset}, kind};
  if (tier == Tier::kDisk) {
    const Buffer zeroed(env_, static_cast<size_t>(chunk.bytes));
    fill_zero(chunk, zeroed.data());
    record.write(*file_, number, zeroed.data());
    return record;
  }
  record.memory = DeviceBytes(device_, kind, chunk.bytes);
  std::byte* const memory = record.memory.data();
  if (kind != MemoryKind::kDevice) {
    fill_zero(chunk, memory);
    return record;
  }
  transfer_behind(queue_);
  void* const queue = queues_.transfer_queue();
  device_.fill(queue, memory, 0, 4, chunk.bytes / 4);
  for (const Piece& piece : chunk.pieces)
    for (int k = 0; k < piece.states; ++k)
      if (const StateFormat& format = piece.format[k]; format.zero)
        device_.fill(queue, memory + piece.codes_at[k], format.zero, 1, format.code_bytes(piece.elements));
  return record;
}

// A chunk moves in two phases. First the chunk is copied, which may fail; then the copies of all moving chunks replace
// the originals.
DeviceStore::Move DeviceStore::copy_to(size_t chunk, Tier to) {
  DeviceRecord& record = chunks_[chunk];
  const int64_t bytes = record.chunk.bytes;
  Move move{to, {}};
  if (to != Tier::kDisk)
    move.memory = DeviceBytes(device_, to == Tier::kDevice ? MemoryKind::kDevice : MemoryKind::kPinned, bytes);
  if (to != Tier::kDisk && record.tier() != Tier::kDisk) {
    copy_now(move.memory.data(), record.memory.data(), bytes);
    return move;
  }
  const Buffer between(env_, static_cast<size_t>(bytes));
  read_record(chunk, between.data());
  if (to == Tier::kDisk)
    record.write(*file_, chunk, between.data());
  else
    copy_now(move.memory.data(), between.data(), bytes);
  return move;
}

void DeviceStore::adopt(Moves moves) noexcept {
  for (size_t i = 0; i < moves.size(); ++i) {
    if (!moves[i]) continue;
    chunks_[i].kind = moves[i]->to == Tier::kDevice ? MemoryKind::kDevice : MemoryKind::kPinned;
    chunks_[i].memory = std::move(moves[i]->memory);
    chunks_[i].forget_kept();
  }
}

// A driver that must evict memory that the step needs again moves everything, and some drivers hang. The driver may or
// may not have moved this store's existing state, so its bytes must not be counted as free twice.
void DeviceStore::check_managed(int64_t bytes) {
  const Device::Limits limits = device_.limits();
  int64_t most = limits.total;
  if (limits.free >= 0) {
    const int64_t held = report().managed_bytes;
    if (held == 0) managed_room_ = limits.free;
    most = std::max<int64_t>(std::min(managed_room_, limits.free + held) - Residency::margin(limits.total), 0);
  }
  if (const int64_t given = options_.memory.device; given >= 0) most = most < 0 ? given : std::min(most, given);
  LT_REQUIRE(most < 0 || bytes <= most,
             "%s of state do not fit in %s of device memory, and managed memory must not exceed it; give less managed "
             "state, or a budget without managed memory, which moves only what does not fit",
             format_bytes(bytes).c_str(), format_bytes(most).c_str());
}

// Returns the number of slots of this plan, or of a plan that must stream more.
int DeviceStore::ring_of(const TierPlan& plan) const {
  return transfer() == TransferMode::kZeroCopy ? 0 : plan.slots > 0 ? plan.slots : kOverlappingSlots;
}

// Chunks that leave the device move first, either all or none. Then the arriving chunks move as far as there is memory.
void DeviceStore::move_to(const StorePlan& planned) {
  catch_up();
  const TierPlan& plan = planned.plan.tiers[0];
  make_places(places_for(planned.plan.tier));
  const int slots = ring_of(plan);
  const auto copies_of = [&](bool nearer, Moves& moves) {
    for (size_t i = 0; i < moves.size(); ++i)
      if (const Tier to = planned.plan.tier[i], from = chunks_[i].tier(); to != from && (to < from) == nearer)
        moves[i] = copy_to(i, to);
  };
  // Adopts the moves; returns true if anything moved.
  const auto commit = [&](Moves& moves) {
    std::vector<bool> resident(moves.size());
    bool moved = false;
    for (size_t i = 0; i < moves.size(); ++i) {
      resident[i] = (moves[i] ? moves[i]->to : chunks_[i].tier()) == Tier::kDevice;
      moved |= moves[i].has_value();
    }
    Pager pager(plan_keeping(std::move(resident), sizes_of(chunks_), slots), transfer());
    adopt(std::move(moves));
    forget_stage();
    pager_ = std::move(pager);
    fit_ring(planned.plan.tiers[1].slots);
    return moved;
  };
  Moves down(chunks_.size()), up(chunks_.size());
  copies_of(false, down);
  slots_.clear();
  demotions_ += commit(down);

  std::exception_ptr error;
  try {
    for (int i = 0; i < plan.slots; ++i)  // the slots also need room
      slots_.emplace_back(device_, MemoryKind::kDevice, plan.slot_bytes);
    transfer_behind(queue_);
    copies_of(true, up);
  } catch (const Error& short_of) {
    if (short_of.kind() != ErrorKind::kOutOfMemory) error = std::current_exception();
  }
  promotions_ += commit(up);
  const TierPlan& now = pager_.plan();
  if (static_cast<int>(slots_.size()) != now.slots || (now.slots > 0 && slots_[0].bytes() != now.slot_bytes))
    slots_.clear();
  if (error) std::rethrow_exception(error);
}

void DeviceStore::set_device_budget(int64_t bytes) {
  LT_REQUIRE(bytes >= 0, "got a budget of %lld bytes of device memory, wanted 0 or more", ll(bytes));
  onload();
  const std::optional<int64_t> before = std::exchange(budget_, bytes);
  if (options_.memory.managed || chunks_.empty()) return;
  try {
    const StorePlan now = plan({});
    bool moves = now.plan.tiers[0].slots != pager_.plan().slots;
    for (size_t i = 0; i < chunks_.size(); ++i) moves |= now.plan.tier[i] != chunks_[i].tier();
    if (moves) move_to(now);
  } catch (...) {
    budget_ = before;
    throw;
  }
}

int64_t DeviceStore::demote(int64_t bytes) {
  if (bytes <= 0 || options_.memory.managed || chunks_.empty() || offloaded_) return 0;
  const int64_t before = report().device_bytes;
  residency_.disturbed();
  catch_up();
  set_device_budget(std::max<int64_t>(before - bytes, 0));
  if (before - report().device_bytes < bytes) slots_.clear(), pager_.forget();  // the next step allocates them
  return std::max<int64_t>(before - report().device_bytes, 0);
}

Residency::Seen DeviceStore::seen() const {
  const Device::Limits limits = device_.limits();
  const int64_t held = report().device_bytes;
  Residency::Seen seen{limits.free, limits.total, held, bytes_of_all()};
  if (room_.value_or(-1) >= 0)
    seen.free = std::max<int64_t>(*room_ - held, 0);
  else if (seen.free < 0 && limits.total >= 0)
    seen.free = std::max<int64_t>(limits.total / 8 * 7 - held, 0);
  return seen;
}

void DeviceStore::follow_residency() {
  const Residency::Seen now = seen();
  const std::optional<int64_t> budget = residency_.after_step(now, order_.begins());
  if (!budget || (*budget < now.held && pager_.plan().resident_bytes == 0)) return;
  try {
    set_device_budget(*budget);
  } catch (...) {  // the step is done; chunks that could not be moved have stayed where they were
  }
}

// Prefers host memory as far as it has room beside its current contents and slots.
std::vector<Tier> DeviceStore::offloaded_tiers() const {
  const int64_t limit = options_.memory.host;
  int64_t room = limit < 0 ? INT64_MAX : limit - static_cast<int64_t>(ring_.slots()) * ring_.slot_bytes();
  for (const DeviceRecord& record : chunks_)
    if (record.tier() == Tier::kHost) room -= record.chunk.bytes;
  std::vector<Tier> tiers;
  for (const DeviceRecord& record : chunks_) {
    Tier tier = record.tier();
    if (tier == Tier::kDevice) {
      tier = options_.memory.disk.empty() || record.chunk.bytes <= room ? Tier::kHost : Tier::kDisk;
      if (tier == Tier::kHost) room -= record.chunk.bytes;
    }
    tiers.push_back(tier);
  }
  return tiers;
}

void DeviceStore::check_offload() const {
  if (offloaded_) return;
  if (!options_.memory.disk.empty()) return places_for(offloaded_tiers()).check(options_.memory.disk_limit);
  const int64_t needed = bytes_of_all();
  LT_REQUIRE(options_.memory.host < 0 || needed <= options_.memory.host,
             "got a host memory budget of %lld bytes, wanted at least %lld to put all state there",
             ll(options_.memory.host), ll(needed));
}

void DeviceStore::offload() {
  if (offloaded_ || options_.memory.managed || chunks_.empty()) return;
  check_offload();
  catch_up();
  const std::vector<Tier> to = offloaded_tiers();
  make_places(places_for(to));
  Moves down(chunks_.size());
  for (size_t i = 0; i < chunks_.size(); ++i)
    if (to[i] != chunks_[i].tier()) down[i] = copy_to(i, to[i]);
  adopt(std::move(down));
  offloaded_ = true;
  slots_.clear();
  pager_.forget();
  forget_stage();
}

void DeviceStore::onload() {
  if (!offloaded_ || device_.is_lost()) return;
  Moves back(chunks_.size());
  for (size_t i = 0; i < chunks_.size(); ++i)
    if (pager_.plan().resident[i]) back[i] = copy_to(i, Tier::kDevice);
  adopt(std::move(back));
  offloaded_ = false;
}

int64_t DeviceStore::offloaded_bytes() const {
  int64_t bytes = 0;
  for (size_t i = 0; i < chunks_.size() && offloaded_; ++i)
    if (pager_.plan().resident[i]) bytes += chunks_[i].chunk.bytes;
  return bytes;
}

// -- Chunks on disk
// Returns file places for existing chunks only.
FilePlaces DeviceStore::places_for(const std::vector<Tier>& tiers) const {
  return places_of(chunks_, sizes_of(chunks_), tiers);
}

// Makes room in the file. A chunk that has a place there need not be on disk.
void DeviceStore::make_places(const FilePlaces& places) {
  if (places.bytes == 0) return;
  places.check(options_.memory.disk_limit);
  places.fit(file_, env_, options_.memory.disk);
  for (size_t i = 0; i < chunks_.size(); ++i) chunks_[i].file_offset = places.offsets[i];
}

// Gives the ring at least one slot if chunks are on disk.
void DeviceStore::fit_ring(int slots) noexcept {
  int64_t largest = 0;
  for (const DeviceRecord& record : chunks_)
    if (record.tier() == Tier::kDisk) largest = std::max(largest, record.chunk.bytes);
  ring_.resize(file_.get(), largest > 0 ? std::max(slots, 1) : 0, largest);
}

void DeviceStore::begin_ring(const std::vector<bool>& wanted, int threads) {
  if (ring_.slots() == 0) return;
  ring_.take_failure();  // drops the failure of an aborted step; a kept chunk is part of this step
  std::vector<int> on_disk;
  for (const int chunk : pager_.plan().streamed)
    if (const auto i = static_cast<size_t>(chunk); chunks_[i].tier() == Tier::kDisk && (wanted.empty() || wanted[i]))
      on_disk.push_back(chunk);
  ring_.begin_step(std::move(on_disk), threads);
}

// Reads a chunk at once into host memory, wherever the chunk is.
void DeviceStore::read_record(size_t chunk, std::byte* to) {
  const DeviceRecord& record = chunks_[chunk];
  if (record.tier() != Tier::kDisk) return copy_now(to, record.memory.data(), record.chunk.bytes);
  if (const std::byte* const kept = record.kept_data())
    return void(std::memcpy(to, kept, static_cast<size_t>(record.chunk.bytes)));
  record.read(*file_, chunk, to);
}

// Stores the host's changes of a chunk. If the chunk cannot be written, it stays in host memory; see check_written().
void DeviceStore::write_record(size_t chunk, const std::byte* from) {
  DeviceRecord& record = chunks_[chunk];
  if (record.tier() != Tier::kDisk) return copy_now(record.memory.data(), from, record.chunk.bytes);
  try {
    record.write(*file_, chunk, from);
  } catch (...) {
    note_unwritten();
    record.kept_change = std::exchange(stage_memory_, Buffer());
    stage_.forget();
  }
}

}  // namespace lowtide
