// Where the state of the parameters under one budget lives: in memory of its own while that fits, else in a store.
#pragma once

#include <memory>
#include <span>

#include "lowtide/optimizer.h"
#include "memory/parked.h"
#include "memory/state_store.h"
#include "optim/slot.h"

namespace lowtide {

// Throws kInvalidArgument on a bad value.
void check_memory(const Memory& memory);

// What Home::place decides, before it does it.
struct Placement {
  std::vector<ShapedParam> shaped;  // the parameters whose rule has state
  int64_t record_bytes = 0;         // that they would take where they are directly addressable
  bool direct = false;              // that they are: there is no limit, or what is left of it holds all of them
  StoreOptions store;               // else: of the store that takes them
};
// Of `slots`, numbered `params`, beside `taken` bytes of the budget.
Placement placement_of(const Memory& memory, int64_t taken, std::span<const Slot* const> slots,
                       std::span<const int64_t> params);

class Home {
 public:
  // Throws kInvalidArgument on a bad value. env outlives this object.
  Home(Env& env, const Memory& memory) : env_(env), memory_(memory), arena_(env) { check_memory(memory); }

  bool limited() const { return memory_.ram_bytes >= 0; }
  // Gives state to all of `slots`, numbered `params`: directly addressable if what is left of the budget holds all of
  // them, else in the store. Throws kInvalidArgument, kOutOfMemory or kIo; then no slot has changed.
  void place(std::span<Slot* const> slots, std::span<const int64_t> params);

  // Throws kInvalidArgument if offload() cannot be: no disk, or its limit is too low.
  void check_offload();
  // All state out of RAM, to the disk, and back. No-ops where it is already so. Throws as check_offload(), or kIo; then
  // it stays where it was.
  void offload(int threads);
  void onload(int threads);
  int64_t parked_bytes() const { return parked_ ? parked_->bytes() : 0; }

  StateStore* store() { return store_.get(); }
  const StateStore* store() const { return store_.get(); }
  int64_t direct_bytes() const { return arena_.allocated_bytes(); }

 private:
  std::vector<const Buffer*> in_ram();

  Env& env_;
  Memory memory_;
  Arena arena_;
  std::unique_ptr<StateStore> store_;
  std::unique_ptr<ParkedMemory> parked_;
};

}  // namespace lowtide
