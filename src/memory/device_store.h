// A store on a device, under a budget of device memory: as many chunks as fit stay on the device, and the rest lives in
// pinned host memory and reaches the device in every step, as transfer_mode.h says. What host memory has no room for
// either is in a scratch file, and comes by way of pinned slots (disk_ring.h). Or, if asked for, all of it lives in
// managed memory, which the driver migrates.
//
// A step is queued, not waited for: it is ordered on the caller's queue, and after all of the step before it. But where
// chunks are on disk it returns when they have been written, and what cannot be written stays in host memory, as in a
// StateStore. An error of the device passes through; memory that is short is found before a step begins. Host memory
// and the file outlive a device that is lost: visit() and copy() still read the chunks there that no step may have been
// changing. A forked child can read nothing of it, and says so: devices do not survive a fork, and pinned memory need
// not be mapped in the child.
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

// Which chunks in host memory a step on a device may still be changing. Once the device is lost nobody can tell any
// more, so the question is asked, without waiting, while the device can still answer.
class HostWrites {
 public:
  // For so many chunks; all steps have happened.
  void resize(size_t chunks) { changing_.assign(chunks, false); }
  // A step that changes these chunks is about to be queued.
  void begin(const std::vector<int>& chunks) {
    for (const int chunk : chunks) changing_[static_cast<size_t>(chunk)] = true;
  }
  // All of that step is queued, and has happened when these have.
  void end(std::vector<Device::Event> all) { last_step_ = std::move(all); }
  // Asks whether the last step that was queued as a whole has happened.
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
  // How chunks that do not fit are stepped, where memory.transfer does not say; asked when it first matters. Empty: by
  // copies.
  std::function<TransferMode()> choose_transfer_mode = {};
  // Device memory comes from an allocator that hands out what the caller's queue may still use.
  bool shared_allocator = false;
  // Keeps memory that is freed next from being handed out before what is queued on this queue has happened. If it
  // returns false, or without it, such memory is freed when that has happened.
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
  // All state out of device memory to host memory (what has no room there, to the disk), and back. No-ops where it is
  // already so. Throws kInvalidArgument (the budgets), kOutOfMemory or kIo, and changes nothing. Everything that needs
  // the state brings it back.
  void check_offload() const;
  void offload();
  void onload();
  int64_t offloaded_bytes() const;
  // Plans anew for this budget, which is raised to what the slots take, and moves what that changes. Waits for the
  // device. Throws and changes nothing; but where device memory is short, what was to go there stays in host memory.
  void set_device_budget(int64_t bytes);
  // At least `bytes` less on the device, or nothing; returns how many. Throws as set_device_budget().
  int64_t demote(int64_t bytes);
  // Takes more slots, of up to `bytes`, and queues reads of what the next step needs into them, after what is queued on
  // `stream` where that may still use their memory; that step gives them back. Returns their bytes: 0 where nothing
  // streams or memory is short.
  int64_t prefetch(int64_t bytes, void* stream);
  // Gives these slots back if the next step does not come through step().
  void end_prefetch();
  // A step is to come. Free device memory that nothing else needs; -1: ask the driver. Under `automatic` residency
  // decides by it where new state begins, and at the end of each step.
  void set_free_bytes(int64_t bytes) { room_ = bytes < 0 ? -1 : bytes + report().device_bytes; }
  // The queue of the step to come: memory that is taken before it comes after what is queued there.
  void set_queue(void* queue) { queue_ = queue; }
  // Asks, without waiting, whether the last step has happened, while the device can still answer. Call this when it is
  // known what that step was.
  void note_what_happened();

  // -- Recorded steps
  // Whether all state is in device memory and stays there.
  bool stays() const { return !options_.memory.managed && !offloaded_ && pager_.plan().streamed.empty(); }
  // The pieces of all chunks where they are, without a step. Only while stays().
  void visit_in_place(const Work& work) const;
  // The steps that follow are queued there, and do not come through step().
  void follow(void* queue);

  MemoryReport report() const override;

 private:
  // Work that the host has queued and not waited for.
  enum class Queued {
    kNothing,
    kWork,
    kBrokenStep,  // parts of a step that failed: nothing is queued before they have been waited for
  };
  // Slots that a step has used and the device may still use.
  struct Returning {
    std::vector<Device::Event> used;
    DeviceBytes memory;
  };
  struct Move {
    Tier to;
    DeviceBytes memory;  // none: on disk
  };
  using Moves = std::vector<std::optional<Move>>;  // by chunk; nothing: it stays

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
  std::optional<TransferMode> transfer_;  // nothing: not chosen yet
  std::optional<int64_t> budget_;         // in place of options_.memory.device
  std::vector<DeviceRecord> chunks_;
  bool offloaded_ = false;             // chunks that the plan keeps on the device are elsewhere until onload()
  std::unique_ptr<ScratchFile> file_;  // nullptr: nothing has been on disk
  DiskRing ring_;
  std::vector<DeviceBytes> slots_;  // the plan's, and behind them those that prefetch() has borrowed
  std::deque<Returning> returning_;
  DeviceQueues queues_;
  Queued queued_ = Queued::kNothing;
  HostWrites host_writes_;
  bool settled_ = true;  // chunks are what they were at the last settle(), until they are told of
  Buffer stage_memory_;
  Residency residency_;
  std::optional<int64_t> room_;  // for state, as the caller says; -1: not known; nothing: no step has come
  void* queue_ = nullptr;
  int64_t managed_room_ = -1;  // what was free before there was managed memory; -1: not known
  int64_t promotions_ = 0, demotions_ = 0;
};

}  // namespace lowtide
