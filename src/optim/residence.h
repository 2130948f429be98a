// Keeps the state of the parameters under one budget: directly in memory while it fits, else in a store.
#pragma once

#include <memory>
#include <optional>
#include <span>

#include "lowtide/optimizer.h"
#include "memory/device_store.h"
#include "memory/offloaded.h"
#include "memory/state_store.h"
#include "optim/parameter.h"

namespace lowtide {

// Throws kInvalidArgument on a bad value.
void check_memory(const Memory& memory);

// Where Residence::place puts the state.
struct Placement {
  std::vector<ShapedParam> shaped;  // parameters whose rule has state
  int64_t record_bytes = 0;         // bytes they need if directly addressable
  bool direct = false;              // there is no limit, or the remaining budget holds all of them
  StoreOptions store;               // otherwise: options of the store
};
// taken: bytes of the budget that other directly addressable state uses.
Placement placement_of(const Memory& memory, int64_t taken, std::span<const ShapedParam> params);

class Residence {
 public:
  // Throws kInvalidArgument on a bad value. env and the stepping backend outlive this object. A disk's relative path is
  // resolved now, so later changes of the working directory do not matter.
  Residence(Env& env, const Memory& memory, Backend& backend, const DeviceAllocator& allocator = {});

  // True if state is placed for all parameters together, to divide a budget or cut chunks.
  bool waits() const { return device_ || memory_.host >= 0; }
  // Gives all of `params` their state: directly addressable if they are in host memory and the remaining budget holds
  // all of them, otherwise in the store. Throws kInvalidArgument, kOutOfMemory or kIo and then changes nothing.
  void place(std::span<Parameter* const> params, std::span<const int64_t> numbers);

  // Throws kInvalidArgument if offload() is impossible: no disk, or its limit is too low.
  void check_offload();
  // Move all state from RAM to the disk, or from device memory to RAM, and back; no-ops if it is already there. They
  // throw like check_offload(), or kIo, and then leave the state where it was.
  void offload(int threads);
  void onload(int threads);
  bool may_be_offloaded() const { return offloaded_ || on_device_; }
  // Bytes that offload() has set aside, and how many of them are on disk.
  int64_t offloaded_bytes() const { return on_device_ ? on_device_->offloaded_bytes() : on_disk_bytes(); }
  int64_t on_disk_bytes() const { return offloaded_ ? offloaded_->bytes() : 0; }

  // nullptr if parameters are in host memory or there is no state yet.
  DeviceStore* device_store() { return on_device_.get(); }
  // Sets the queue that orders further work. Before a step, also pass the free bytes.
  void tell(void* queue, std::optional<int64_t> free_bytes = {});
  bool automatic() const { return memory_.automatic; }
  Store* store() { return on_device_ ? static_cast<Store*>(on_device_.get()) : in_ram_.get(); }
  const Store* store() const { return const_cast<Residence*>(this)->store(); }
  int64_t direct_bytes() const { return arena_.allocated_bytes(); }

 private:
  std::vector<const Buffer*> ram_buffers();
  void add_to_store(const Placement& placement);

  Env& env_;
  Memory memory_;
  Backend& backend_;
  Device* device_;  // nullptr if parameters are in host memory
  DeviceAllocator allocator_;
  void* queue_ = nullptr;
  std::optional<int64_t> free_bytes_;  // before the last step
  Arena arena_;
  std::unique_ptr<StateStore> in_ram_;  // at most one of the two
  std::unique_ptr<DeviceStore> on_device_;
  std::unique_ptr<OffloadedMemory> offloaded_;
};

}  // namespace lowtide
