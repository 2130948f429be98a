// A store on a device, under a budget of device memory: as many chunks as fit stay on the device; the rest lives in
// pinned host memory and reaches the device in every step, as transfer_mode.h says. Chunks that do not fit in host
// memory either are in a scratch file, and pass through pinned slots (disk_ring.h). Alternatively, all state lives in
// managed memory, which the driver migrates.
//
// A step is queued, without waiting: it is ordered on the caller's queue, after all of the previous step. If chunks are
// on disk, however, it returns once they have been written; a chunk that cannot be written stays in host memory, as in
// a StateStore. Errors of the device pass through; a shortage of memory is found before a step begins. Host memory and
// the file survive a lost device: visit() and copy() still read the chunks there that no step may have been changing. A
// forked child cannot read any state and says so: devices do not survive a fork, and pinned memory need not be mapped
// in the child.
#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "backend/device.h"
#include "core/buffer.h"
#include "core/forks.h"
#include "memory/device_queues.h"
#include "memory/disk_ring.h"
#include "memory/residency.h"
#include "memory/store.h"
#include "memory/plan.h"
#include "memory/transfer_mode.h"

namespace lowtide {

// Tracks which chunks in host memory a step on a device may still be changing. Once the device is lost nobody can tell,
// so this asks, without waiting, while the device can still answer.
class HostWrites {
 public:
  // Prepares for that many chunks; all steps are done.
  void resize(size_t chunks) { changing_.assign(chunks, false); }
  // A step that changes these chunks is about to be queued.
  void begin(const std::vector<int>& chunks) {
    for (const int chunk : chunks) changing_[static_cast<size_t>(chunk)] = true;
  }
  // The whole step is queued; it is done once all these events have happened.
  void end(std::vector<Device::Event> all) { last_step_ = std::move(all); }
  // Asks whether the last fully queued step is done.
  void ask(Device& device) {
    const auto happened = [&](const Device::Event& event) { return device.has_happened(event); };
    if (!last_step_.empty() && std::all_of(last_step_.begin(), last_step_.end(), happened)) all_happened();
  }
  // The host has waited for everything.
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
  // How chunks that do not fit are stepped, if memory.transfer does not say; called when it first matters. Empty: by
  // copies.
  std::function<TransferMode()> choose_transfer_mode = {};
  // Device memory comes from an allocator that may hand out memory still in use by the caller's queue.
  bool shared_allocator = false;
  // Keeps memory that is about to be freed from being handed out before the work now on this queue is done. If it is
  // absent or returns false, the memory is freed after that work.
  std::function<bool(void* memory, void* queue)> note_use = {};
};

class DeviceStore final : public Store {
 public:
  DeviceStore(Env& env, Device& device, DeviceStoreOptions options);
  ~DeviceStore() override;

  void add(std::span<const ShapedParam> params) override;
  void synchronize() override;
  void peek(size_t chunk, std::byte* to) override;

  // -- What moves between steps
  // Moves all state from device memory to host memory (or to the disk, if it does not fit there), and back. No-ops if
  // that is already the case. Throws kInvalidArgument (the budgets), kOutOfMemory or kIo, and changes nothing.
  // A step and add() bring it back; copies and visits find it where it is.
  void check_offload() const;
  void offload();
  void onload();
  int64_t offloaded_bytes() const;
  // Plans for this budget, which is raised to the needs of the slots, and moves state accordingly. Waits for the
  // device. Throws and changes nothing; but if device memory is short, state that should move there stays in host
  // memory.
  void set_device_budget(int64_t bytes);
  // Frees at least `bytes` on the device, or nothing; returns the amount. Throws like set_device_budget().
  int64_t demote(int64_t bytes);
  // Takes more slots, of up to `bytes`, and queues reads of the next step's needs into them, behind work queued on
  // `stream` if that may still use their memory; that step gives them back. Returns their bytes: 0 if nothing streams
  // or memory is short.
  int64_t prefetch(int64_t bytes, void* stream);
  // Gives these slots back if the next step does not come through step().
  void end_prefetch();
  // Announces a step. bytes: free device memory that nothing else needs; -1: ask the driver. `automatic` residency uses
  // it to place new state, and at the end of each step.
  void set_free_bytes(int64_t bytes) { room_ = bytes < 0 ? -1 : bytes + report().device_bytes; }
  // The queue of the next step: memory allocated before it is used behind the work queued there.
  void set_queue(void* queue) { queue_ = queue; }
  // Asks, without waiting, whether the last step is done, while the device can still answer. Call this when it is known
  // what that step was.
  void note_what_happened();

  // -- Recorded steps
  // True if all state is in device memory and stays there.
  bool stays() const { return !options_.memory.managed && !offloaded_ && pager_.plan().streamed.empty(); }
  // Visits the pieces of all chunks in place, without a step. Only while stays().
  void visit_in_place(const Work& work) const;
  // The following steps are queued there, without step().
  void follow(void* queue);

  MemoryReport report() const override;

 private:
  // Work that the host has queued without waiting for it.
  enum class Queued {
    kNothing,
    kWork,
    kBrokenStep,  // parts of a failed step: wait for them before queueing anything
  };
  // Slots of a past step that the device may still use.
  struct Returning {
    std::vector<Device::Event> used;
    DeviceBytes memory;
  };
  struct Move {
    Tier to;
    DeviceBytes memory;  // none: on disk
  };
  using Moves = std::vector<std::optional<Move>>;  // by chunk; empty: it stays

  size_t chunks() const override { return chunks_.size(); }
  bool is_kept(size_t chunk) const override { return chunks_[chunk].kept_data(); }
  const Chunk& chunk_at(size_t chunk) const override { return chunks_[chunk].chunk; }
  const std::byte* host_memory(std::byte*) const override { return nullptr; }  // it may be the device's
  void settle() override;
  void pass(const Work& work, bool changes, int threads, const std::vector<int64_t>& wanted, void* stream) override;
  void queue_step(const Work& work, bool changes, int threads, const std::vector<int64_t>& wanted, void* stream);
  void end_step(const std::vector<int64_t>& wanted);
  TransferMode transfer() const { return transfer_.value_or(TransferMode::kCopy); }

  // The host waits, reads and changes.
  std::byte* bring(size_t chunk) override;
  std::byte* bring_from_lost(size_t chunk);
  void check_process() const;
  void before_queueing();
  void catch_up();
  void break_off() noexcept;
  void forget_stage();
  void copy_now(void* to, const void* from, int64_t bytes);
  void transfer_behind(void* queue);

  // device_store_moves.cpp: where chunks are.
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
  std::optional<TransferMode> transfer_;  // empty: not chosen yet
  std::optional<int64_t> budget_;         // replaces options_.memory.device
  std::vector<DeviceRecord> chunks_;
  bool offloaded_ = false;             // chunks that the plan keeps on the device are elsewhere until onload()
  std::unique_ptr<ScratchFile> file_;  // nullptr: nothing has been on disk
  DiskRing ring_;
  std::vector<DeviceBytes> slots_;  // the plan's, followed by those that prefetch() has borrowed
  std::deque<Returning> returning_;
  DeviceQueues queues_;
  Queued queued_ = Queued::kNothing;
  HostWrites host_writes_;
  bool settled_ = true;  // chunks are unchanged since the last settle()
  Buffer stage_memory_;
  Residency residency_;
  std::optional<int64_t> room_;  // for state, as the caller says; -1: unknown; empty: no step yet
  void* queue_ = nullptr;
  int64_t managed_room_ = -1;  // free memory before there was managed memory; -1: unknown
  int64_t promotions_ = 0, demotions_ = 0;
};

}  // namespace lowtide
