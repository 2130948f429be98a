// A store on a device, under a budget of device memory. As many chunks as fit stay on the device; the rest lives in
// pinned host memory and reaches the device in every step in one of the ways that transfer_mode.h lists. Chunks for
// which host memory has no room are in a scratch file and pass through pinned slots (disk_ring.h). Alternatively, all
// state lives in managed memory, which the driver migrates.
//
// A step is queued on the caller's queue, after the whole previous step, and the call does not wait. If chunks are on
// disk, however, the call returns only after they have been written; a chunk that cannot be written stays in host
// memory, as in a StateStore. Errors of the device pass through; a shortage of memory is found before a step begins.
// Host memory and the file survive a lost device: visit() and copy() can still read the chunks there, except chunks
// that a step may have been changing. In a forked child, access to any state throws, because devices do not survive a
// fork and pinned memory need not be mapped in the child.
#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "backend/device.h"
#include "core/buffer.h"
#include "core/process.h"
#include "memory/device_queues.h"
#include "memory/disk_ring.h"
#include "memory/residency.h"
#include "memory/store.h"
#include "memory/plan.h"
#include "memory/transfer_mode.h"

namespace lowtide {

// Tracks which chunks in host memory a step on a device may still be changing. A lost device can no longer tell, so
// this class asks the device, without waiting, while it still answers.
class HostWrites {
 public:
  // Prepares for this number of chunks. All steps must be done.
  void resize(size_t chunks) { changing_.assign(chunks, false); }
  // Call this before queueing a step that changes these chunks.
  void begin(const std::vector<int>& chunks) {
    for (const int chunk : chunks) changing_[static_cast<size_t>(chunk)] = true;
  }
  // Call this when the whole step is queued. The step is done when all these events have happened.
  void end(std::vector<Device::Event> all) { last_step_ = std::move(all); }
  // Asks whether the last fully queued step is done.
  void ask(Device& device) {
    const auto happened = [&](const Device::Event& event) { return device.has_happened(event); };
    if (!last_step_.empty() && std::all_of(last_step_.begin(), last_step_.end(), happened)) all_happened();
  }
  // Call this when the host has waited for everything.
  void all_happened() {
    last_step_.clear();
    std::fill(changing_.begin(), changing_.end(), false);
  }
  bool may_change(size_t chunk) const { return changing_[chunk]; }

 private:
  std::vector<bool> changing_;
  std::vector<Device::Event> last_step_;
};

struct DeviceStoreOptions {
  Memory memory;  // automatic: see Residency
  // Chooses how chunks that do not fit are stepped if memory.transfer does not say. Called when the choice first
  // matters. If empty, the chunks are copied.
  std::function<TransferMode()> choose_transfer_mode = {};
  // True if device memory comes from an allocator that may hand out memory that the caller's queue still uses.
  bool shared_allocator = false;
  // Prevents the allocator from handing out memory that is about to be freed before the work now on this queue is done.
  // If the function is absent or returns false, the memory is freed after that work.
  std::function<bool(void* memory, void* queue)> note_use = {};
};

class DeviceStore final : public Store {
 public:
  DeviceStore(Env& env, Device& device, DeviceStoreOptions options);
  ~DeviceStore() override;

  void add(std::span<const ShapedParam> params) override;
  void synchronize() override;
  void peek(size_t chunk, std::byte* to) override;

  // -- Moves between steps
  // offload() moves all state from device memory to host memory (or to disk if host memory has no room), and onload()
  // moves the state back. They do nothing if the state is already there, throw kInvalidArgument (the budgets are too
  // low), kOutOfMemory or kIo, and then change nothing. check_offload() only checks the budgets.
  // A step and add() bring the state back; copies and visits access the state where it is.
  void check_offload() const;
  void offload();
  void onload();
  int64_t offloaded_bytes() const;
  // Plans for this budget, which is raised to the needs of the slots, and moves state accordingly. Waits for the
  // device. If it throws, nothing has changed. If device memory is short, state that should move there stays in host
  // memory.
  void set_device_budget(int64_t bytes);
  // Frees at least `bytes` on the device, or nothing, and returns the number of bytes freed. Throws like
  // set_device_budget().
  int64_t demote(int64_t bytes);
  // Allocates more slots, of up to `bytes` in total, and queues reads of the chunks that the next step needs into them.
  // The reads run after work queued on `stream` if that work may still use the slots' memory. The next step frees the
  // slots. Returns the size of the slots, or 0 if nothing streams or memory is short.
  int64_t prefetch(int64_t bytes, void* stream);
  // Frees these slots. Call this if the next step does not come through step().
  void end_prefetch();
  // Announces a step. `bytes` is the free device memory that nothing else needs; -1 asks the driver. `automatic`
  // residency uses the number to place new state and, at the end of each step, to move state.
  void set_free_bytes(int64_t bytes) { room_ = bytes < 0 ? -1 : bytes + report().device_bytes; }
  // Sets the queue of the next step. Memory allocated before the step is used only after the work that is queued there.
  void set_queue(void* queue) { queue_ = queue; }
  // Asks the device, without waiting, whether the last step is done. Call this when the last step is fully recorded,
  // while the device still answers.
  void note_what_happened();

  // -- Recorded steps
  // True if all state is in device memory and stays there.
  bool stays() const { return !options_.memory.managed && !offloaded_ && pager_.plan().streamed.empty(); }
  // Visits the pieces of all chunks in place, without a step. Allowed only while stays() is true.
  void visit_in_place(const Work& work) const;
  // Notes that the following steps are queued on `queue` without step().
  void follow(void* queue);

  MemoryReport report() const override;

 private:
  // The work that the host has queued without waiting.
  enum class Queued {
    kNothing,
    kWork,
    kBrokenStep,  // parts of a failed step; wait for them before queueing anything
  };
  // Slots of a past step that the device may still use.
  struct Returning {
    std::vector<Device::Event> used;
    DeviceBytes memory;
  };
  struct Move {
    Tier to;
    DeviceBytes memory;  // empty on disk
  };
  using Moves = std::vector<std::optional<Move>>;  // indexed by chunk; empty for a chunk that stays

  size_t chunks() const override { return chunks_.size(); }
  bool is_kept(size_t chunk) const override { return chunks_[chunk].kept_data(); }
  const Chunk& chunk_at(size_t chunk) const override { return chunks_[chunk].chunk; }
  const std::byte* host_memory(std::byte*) const override { return nullptr; }  // the memory may be the device's
  void settle() override;
  void pass(const Work& work, bool changes, int threads, const std::vector<int64_t>& wanted, void* stream) override;
  void queue_step(const Work& work, bool changes, int threads, const std::vector<int64_t>& wanted, void* stream);
  void end_step(const std::vector<int64_t>& wanted);
  TransferMode transfer() const { return transfer_.value_or(TransferMode::kCopy); }

  // The host waits for chunks, reads them and changes them.
  std::byte* bring(size_t chunk) override;
  std::byte* bring_from_lost(size_t chunk);
  void check_process() const;
  void before_queueing();
  void catch_up();
  void break_off() noexcept;
  void forget_stage();
  void complete(const std::function<bool()>& order);
  void copy_now(void* to, const void* from, int64_t bytes);
  void transfer_behind(void* queue);

  // device_store_moves.cpp: decides where chunks are.
  void choose_first_budget();
  StorePlan plan(std::span<const ShapedParam> params);
  StoreOptions options() const;
  int64_t device_budget() const;
  void check_managed(int64_t bytes);
  std::vector<DeviceRecord> make_zeros(StorePlan& planned, const FilePlaces& places);
  DeviceRecord make_zero(const Chunk& chunk, Tier tier, size_t number, int64_t file_offset);
  Move copy_to(size_t chunk, Tier to);
  void adopt(Moves moves) noexcept;
  int ring_of(const TierPlan& plan) const;
  void move_to(const StorePlan& planned);
  int64_t bytes_of_all() const { return pager_.plan().resident_bytes + pager_.plan().streamed_bytes; }
  std::vector<Tier> offloaded_tiers() const;
  Residency::Seen seen() const;
  void follow_residency();
  FilePlaces places_for(const std::vector<Tier>& tiers) const;
  void make_places(const FilePlaces& places);
  void fit_ring(int slots) noexcept;
  void begin_ring(const std::vector<bool>& wanted, int threads);
  void read_record(size_t chunk, std::byte* to);
  void write_record(size_t chunk, const std::byte* from);

  // The ring.
  void take_slots(void* stream);
  bool demote_for_slots(int64_t bytes);
  void give_slots_back();
  void free_returned();

  const int64_t forks_ = forks();
  Env& env_;
  Device& device_;
  DeviceStoreOptions options_;
  std::optional<TransferMode> transfer_;  // empty until chosen
  std::optional<int64_t> budget_;         // replaces options_.memory.device
  std::vector<DeviceRecord> chunks_;
  bool offloaded_ = false;             // until onload(), chunks that the plan keeps on the device are elsewhere
  std::unique_ptr<ScratchFile> file_;  // nullptr until something is on disk
  DiskRing ring_;
  std::vector<DeviceBytes> slots_;  // the plan's slots, followed by slots that prefetch() has added
  std::deque<Returning> returning_;
  DeviceQueues queues_;
  Queued queued_ = Queued::kNothing;
  HostWrites host_writes_;
  bool settled_ = true;  // chunks are unchanged since the last settle()
  Buffer stage_memory_;
  Residency residency_;
  std::optional<int64_t> room_;  // the caller's figure for state; -1 if unknown; empty before the first step
  void* queue_ = nullptr;
  int64_t managed_room_ = -1;  // free memory before any managed memory was allocated; -1 if unknown
  int64_t promotions_ = 0, demotions_ = 0;
};

}  // namespace lowtide
