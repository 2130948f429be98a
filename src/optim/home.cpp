#include "optim/home.h"

#include "backend/dialect.h"
#include "core/error.h"

namespace lowtide {

Home::Home(Env& env, const Memory& memory) : env_(env), memory_(memory), arena_(env) {
  LT_REQUIRE(memory.ram_bytes >= -1, "got ram_bytes=%lld, wanted 0 or more, or -1 for no limit",
             static_cast<long long>(memory.ram_bytes));
  LT_REQUIRE(memory.disk_bytes >= -1, "got disk_bytes=%lld, wanted 0 or more, or -1 for no limit",
             static_cast<long long>(memory.disk_bytes));
  LT_REQUIRE(memory.chunk_bytes >= 0 && memory.chunk_bytes % 4096 == 0 && memory.chunk_bytes <= int64_t{1} << 40,
             "got chunk_bytes=%lld, wanted a multiple of 4096, or 0 to have it chosen",
             static_cast<long long>(memory.chunk_bytes));
  LT_REQUIRE(memory.disk.empty() || limited(), "got a disk ('%s') without a limit for RAM: all state would stay in RAM",
             memory.disk.c_str());
}

void Home::place(std::span<Slot* const> slots, std::span<const int64_t> params) {
  std::vector<ShapedParam> shaped;
  int64_t bytes = 0;
  for (size_t i = 0; i < slots.size(); ++i) {
    const StateShape shape = slots[i]->shape_of(slots[i]->rule);
    if (shape.states == 0 || (store_ && store_->has(params[i]))) continue;
    shaped.push_back({params[i], shape});
    bytes += slots[i]->record_bytes(slots[i]->rule);
  }
  constexpr int64_t kPage = 4096;
  const int64_t left = memory_.ram_bytes - arena_.allocated_bytes();
  if (!limited() || (!store_ && (bytes + kPage - 1) / kPage * kPage <= left)) {
    if (limited()) arena_.reserve(static_cast<size_t>(bytes));
    for (Slot* slot : slots) slot->allocate_state(arena_, slot->rule);
    return;
  }
  if (!store_) {
    auto store =
        std::make_unique<StateStore>(env_, StoreOptions{left, memory_.disk, memory_.disk_bytes, memory_.chunk_bytes});
    store->add(shaped);
    store_ = std::move(store);
  } else {
    store_->add(shaped);
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

}  // namespace lowtide
