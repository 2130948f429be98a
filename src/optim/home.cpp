#include "optim/home.h"

#include "backend/dialect.h"
#include "core/error.h"

namespace lowtide {

void check_memory(const Memory& memory) {
  LT_REQUIRE(memory.ram_bytes >= -1, "got ram_bytes=%lld, wanted 0 or more, or -1 for no limit",
             static_cast<long long>(memory.ram_bytes));
  LT_REQUIRE(memory.disk_bytes >= -1, "got disk_bytes=%lld, wanted 0 or more, or -1 for no limit",
             static_cast<long long>(memory.disk_bytes));
  LT_REQUIRE(memory.chunk_bytes >= 0 && memory.chunk_bytes % 4096 == 0 && memory.chunk_bytes <= int64_t{1} << 40,
             "got chunk_bytes=%lld, wanted a multiple of 4096, or 0 to have it chosen",
             static_cast<long long>(memory.chunk_bytes));
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
  constexpr int64_t kPage = 4096;
  const int64_t left = memory.ram_bytes - taken;
  out.direct = memory.ram_bytes < 0 || (out.record_bytes + kPage - 1) / kPage * kPage <= left;
  out.store = {left, memory.disk, memory.disk_bytes, memory.chunk_bytes};
  return out;
}

void Home::place(std::span<Slot* const> slots, std::span<const int64_t> params) {
  const Placement placement = placement_of(memory_, arena_.allocated_bytes(), slots, params);
  if (!store_ && placement.direct) {
    if (limited()) arena_.reserve(static_cast<size_t>(placement.record_bytes));
    for (Slot* slot : slots) slot->allocate_state(arena_, slot->rule);
    return;
  }
  if (!store_) {
    auto store = std::make_unique<StateStore>(system_env(), placement.store);
    store->add(placement.shaped);
    store_ = std::move(store);
  } else {
    store_->add(placement.shaped);
  }
  for (size_t i = 0; i < slots.size(); ++i) {
    Slot& slot = *slots[i];
    slot.has_state = true;
    slot.state_rule = slot.rule;
    slot.fresh = true;
    slot.paged = store_->has(params[i]);
    slot.progress.assign(slot.paged ? store_->pieces(params[i]) : 0, Progress{0, true});
  }
}

}  // namespace lowtide
