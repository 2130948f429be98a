// The state of a set of parameters on a device, under a budget of device memory: cut into chunks, of which as many stay
// on the device as fit and the rest lives in pinned host memory and streams through a ring of slots, every step. Or, if
// asked for, all of it in managed memory, which the driver migrates. Where a chunk is never changes a bit of it.
//
// A step is queued, not waited for: it is ordered on the caller's queue, and after all of the step before it. Used by
// one thread at a time. An error of the device passes through; memory that is short is found before a step begins.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "backend/device.h"
#include "core/buffer.h"
#include "memory/device_lanes.h"
#include "memory/pager.h"
#include "memory/store.h"
#include "memory/store_plan.h"

namespace lowtide {

struct DeviceStoreOptions {
  int64_t device_bytes = -1;  // for state, slots included; -1: 7/8 of what is free when parameters are added (of all,
                              // where that is not known)
  int64_t host_bytes = -1;    // likewise; -1: no limit
  int64_t chunk_bytes = 0;    // 0: chosen from the budget
  bool managed = false;
};

class DeviceStore final : public Store {
 public:
  // Both outlive this object.
  DeviceStore(Env& env, Device& device, const DeviceStoreOptions& options);
  ~DeviceStore() override;

  void add(std::span<const ShapedParam> params) override;
  void step(const Work& work, int threads = 1, const std::vector<int64_t>& wanted = {},
            void* stream = nullptr) override;
  void check_written() override { write_changed(); }
  void synchronize() override { lanes_.finish(); }

  // All state out of device memory to host memory, and back. No-ops where it is already so. Throws kInvalidArgument
  // (the host's budget) or kOutOfMemory, and changes nothing. Everything that needs the state brings it back.
  void check_offload() const;
  void offload();
  void onload();
  int64_t offloaded_bytes() const;

  StoreReport report() const override;

 private:
  const Chunk& chunk_at(size_t chunk) const override { return chunks_[chunk].chunk; }
  std::byte* bring(size_t chunk) override;
  void put_back(size_t chunk) override;
  // What the host does next comes after all that is queued.
  void catch_up();
  void abandon_step() noexcept;
  void write_changed();
  void forget_staged();
  void copy_now(void* to, const void* from, int64_t bytes);
  MemoryKind kind_of(bool resident) const;
  // A new chunk's memory, with states that decode to zero.
  DeviceBytes make_zero(const Chunk& chunk, bool resident);
  int64_t device_budget() const;
  void check_managed(int64_t bytes) const;
  void step_managed(const std::vector<bool>& wanted);

  Env& env_;
  Device& device_;
  DeviceStoreOptions options_;
  std::vector<DeviceRecord> chunks_;
  std::vector<DeviceBytes> slots_;
  DeviceLanes lanes_;
  Pager pager_{Plan{}};
  std::vector<DeviceBytes> parked_;  // by chunk: where offload() has put what was on the device
  Buffer stage_;                     // of the host, for a chunk in device memory
  int64_t in_stage_ = -1;
  bool stage_changed_ = false;
  bool queued_ = false;      // since the host last waited
  bool unfinished_ = false;  // of a step that failed: nothing may be queued before it has been waited for
};

}  // namespace lowtide
