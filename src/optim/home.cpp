#include "optim/home.h"

#include "backend/dialect.h"
#include "core/error.h"

namespace lowtide {

void check_memory(const Memory& memory) {
  LT_REQUIRE(memory.ram_bytes >= -1, "got ram_bytes=%lld, wanted 0 or more, or -1 for no limit",
             static_cast<long long>(memory.ram_bytes));
  LT_REQUIRE(memory.disk_bytes >= -1, "got disk_bytes=%lld, wanted 0 or more, or -1 for no limit",
             static_cast<long long>(memory.disk_bytes));
  LT_REQUIRE(memory.chunk_bytes >= 0 && memory.chunk_bytes % kPageBytes == 0 && memory.chunk_bytes <= int64_t{1} << 40,
             "got chunk_bytes=%lld, wanted a multiple of %lld, or 0 to have it chosen",
             static_cast<long long>(memory.chunk_bytes), static_cast<long long>(kPageBytes));
  LT_REQUIRE(memory.disk.empty() || memory.ram_bytes >= 0,
             "got a disk ('%s') without a limit for RAM: all state would stay in RAM", memory.disk.c_str());
}

Placement placement_of(const Memory& memory, int64_t taken, std::span<const Slot* const> slots,
                       std::span<const int64_t> params) {
  Placement out;
  for (size_t i = 0; i < slots.size(); ++i) {
    const StateShape shape = slots[i]->shape_of(slots[i]->rule);
    if (shape.states == 0) continue;
    out.shaped.push_back({params[i], shape});
    out.record_bytes += slots[i]->record_bytes(slots[i]->rule);
  }
  const int64_t left = memory.ram_bytes - taken;
  out.direct = memory.ram_bytes < 0 || round_up(out.record_bytes, kPageBytes) <= left;
  out.store = {left, memory.disk, memory.disk_bytes, memory.chunk_bytes};
  return out;
}

void Home::place(std::span<Slot* const> slots, std::span<const int64_t> params) {
  Placement placement = placement_of(memory_, arena_.allocated_bytes(), slots, params);
  if (!store_ && placement.direct) {
    if (limited()) arena_.reserve(static_cast<size_t>(placement.record_bytes));
    for (Slot* slot : slots) slot->allocate_state(arena_, slot->rule);
    return;
  }
  if (!store_) {
    auto store = std::make_unique<StateStore>(env_, placement.store);
    store->add(placement.shaped);
    store_ = std::move(store);
  } else {  // without those that an attempt of before has put there
    std::erase_if(placement.shaped, [&](const ShapedParam& shaped) { return store_->has(shaped.param); });
    store_->add(placement.shaped);
  }
  // All memory before the first change: the store has the parameters now, also for a second attempt.
  std::vector<std::vector<Progress>> progress;
  for (const int64_t param : params)
    progress.emplace_back(store_->has(param) ? store_->pieces(param) : 0, Progress{0, true});
  for (size_t i = 0; i < slots.size(); ++i) {
    Slot& slot = *slots[i];
    slot.has_state = true;
    slot.torn = 0;
    slot.state_rule = slot.rule;
    slot.fresh = true;
    slot.paged = store_->has(params[i]);
    slot.progress = std::move(progress[i]);
  }
}

// All memory that holds state.
std::vector<const Buffer*> Home::in_ram() {
  std::vector<const Buffer*> buffers = store_ ? store_->shrink() : std::vector<const Buffer*>();
  for (const Buffer& buffer : arena_.buffers()) buffers.push_back(&buffer);
  return buffers;
}

void Home::check_offload() {
  if (parked_) return;
  const std::vector<const Buffer*> buffers = in_ram();
  if (buffers.empty()) return;
  LT_REQUIRE(!memory_.disk.empty(), "got state in RAM and no disk to put it on, wanted a memory budget with a disk");
  int64_t needed = store_ ? store_->report().disk_bytes : 0;
  for (const Buffer* buffer : buffers) needed += static_cast<int64_t>(buffer->bytes());
  LT_REQUIRE(memory_.disk_bytes < 0 || needed <= memory_.disk_bytes,
             "got a disk budget of %lld bytes, wanted at least %lld to put all state there",
             static_cast<long long>(memory_.disk_bytes), static_cast<long long>(needed));
}

void Home::offload(int threads) {
  if (parked_) return;
  check_offload();
  std::vector<const Buffer*> buffers = in_ram();
  if (!buffers.empty()) parked_ = std::make_unique<ParkedMemory>(env_, memory_.disk, std::move(buffers), threads);
}

void Home::onload(int threads) {
  if (!parked_) return;
  parked_->bring_back(threads);
  parked_.reset();
}

}  // namespace lowtide
