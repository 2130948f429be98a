// The state of a set of parameters under one budget, cut into chunks that live wherever there is room: the tiers behind
// one interface. StateStore keeps chunks in RAM and on disk, DeviceStore on a device and in host memory. Where a chunk
// is never changes a bit of it.
//
// Ownership: a store owns the memory of its chunks; what it is constructed with outlives it.
// Threads: one thread at a time uses a store. A step's `work` runs on that thread.
// Streams: a StateStore is done with a step when the call returns. A DeviceStore queues the step on the caller's
// `stream` and its own queues, after all of the step before it, and waits for nothing; calls that read or change state
// on the host wait for the queues first.
// Errors: each function says what it throws. Whatever it throws, every chunk is either as it was or as it should be,
// and the store stays usable.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <map>
#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

#include "core/error.h"
#include "lowtide/memory.h"
#include "memory/chunk.h"
#include "memory/pager.h"
#include "memory/staged_chunk.h"

namespace lowtide {

// Learns in which order steps of some of the parameters come. Gradient release takes one bucket of them after another,
// the same in every iteration: what a step wants says nothing of what the next one will want, but what came behind that
// bucket the last time does.
class StepOrder {
 public:
  // A step of these parameters (empty: all) has come; changes: whether it changes their state. Returns the parameters
  // of the step that followed it the last time, valid until the next call; nullptr: none has yet, but one of all
  // parameters is taken to be followed by another.
  //
  // A step is known by its first parameter. Chunks would not do: buckets of small parameters share them.
  const std::vector<int64_t>* next_after(const std::vector<int64_t>& wanted, bool changes) {
    Step& step = steps_[{wanted.empty() ? -1 : wanted.front(), changes}];
    step.wanted = wanted;
    note_parts(wanted);
    if (last_) last_->next = &step;
    last_ = &step;
    if (!step.next && !wanted.empty()) return nullptr;
    return &(step.next ? step.next : &step)->wanted;
  }
  // Whether the last step began an iteration: one of its parameters had been stepped in the one before. Otherwise it
  // was another bucket.
  bool begins() const { return begins_; }

 private:
  void note_parts(const std::vector<int64_t>& wanted) {
    if (!wanted.empty())
      stepped_.resize(
          std::max(stepped_.size(), static_cast<size_t>(*std::max_element(wanted.begin(), wanted.end())) + 1));
    const auto iteration_of = [&](int64_t param) -> int64_t& { return stepped_[static_cast<size_t>(param)]; };
    begins_ = iteration_ == 0 || wanted.empty() ||
              std::any_of(wanted.begin(), wanted.end(), [&](int64_t i) { return iteration_of(i) == iteration_; });
    iteration_ += begins_;
    for (const int64_t param : wanted) iteration_of(param) = iteration_;
  }

  struct Step {
    std::vector<int64_t> wanted;
    const Step* next = nullptr;
  };
  std::map<std::pair<int64_t, bool>, Step> steps_;
  Step* last_ = nullptr;
  std::vector<int64_t> stepped_;  // by parameter: the last iteration
  int64_t iteration_ = 0;
  bool begins_ = true;
};

// The kIo error of a call that was carried out to its end: a disk refused a write, and what could not be written is
// kept in RAM. Until it is raised, a failure is the std::exception_ptr of the first write that failed: taking one needs
// no memory.
class KeptInMemory : public Error {
 public:
  using Error::Error;
};

// Throws KeptInMemory if `failure` is one. done: the call that is complete all the same ("step").
void raise_kept(std::exception_ptr failure, const char* done, int64_t kept_bytes);

class Store {
 public:
  using PlacedChunk = lowtide::PlacedChunk;
  using Work = ChunkWork;

  virtual ~Store() = default;

  // Adds the zeroed state of parameters, which the store does not have yet, behind what it has, and plans anew. Throws
  // kInvalidArgument (the budgets cannot hold it), kOutOfMemory or kIo, and changes nothing.
  virtual void add(std::span<const ShapedParam> params) = 0;
  bool has(int64_t param) const { return pieces_.contains(param); }
  size_t pieces(int64_t param) const { return pieces_.at(param).size(); }

  // Every chunk once, one or several in a call: work(chunks) changes their pieces, or queues that on `stream`. Only
  // chunks that hold some of the `wanted` parameters are brought (empty: all). threads: for checksums.
  // Throws what `work` throws, kIo, kOutOfMemory or kDeviceLost. An error may stop the step half way: chunks for which
  // `work` has returned are changed, the others are not, and the caller's own count says which. KeptInMemory comes
  // after the last chunk.
  void step(const Work& work, int threads = 1, const std::vector<int64_t>& wanted = {}, void* stream = nullptr) {
    if (!told_) return pass(work, true, threads, wanted, stream);
    const Work told = [&](std::span<const PlacedChunk> chunks) {
      tell(chunks);
      work(chunks);
    };
    pass(told, true, threads, wanted, stream);
  }
  // The same for work that changes nothing: chunks are read and not written. Throws before the first chunk or after the
  // last.
  void look(const Work& work, int threads = 1, const std::vector<int64_t>& wanted = {}, void* stream = nullptr) {
    pass(work, false, threads, wanted, stream);
  }

  // -- Copies of chunks as they are now, while steps go on

  // Waits for what is queued: from here on, until `told` is called for it, peek() of a chunk gives what it is now.
  // told(chunk, memory) is called by step() before each change of a chunk, with its bytes where the host has them, else
  // nullptr. It throws nothing. Empty: nobody is told any more. Other changes, by visit() or copy(), are told to
  // nobody.
  using Told = std::function<void(size_t chunk, const std::byte* memory)>;
  void watch(Told told);
  void unwatch() { told_ = nullptr; }
  size_t chunk_count() const { return chunks(); }
  const Chunk& chunk(size_t number) const { return chunk_at(number); }
  // Copies all bytes of a chunk to page-aligned host memory. Changes nothing of the store and forgets nothing that it
  // has read ahead. Any thread, while no other is in a call of this store. Throws kIo or kDeviceLost.
  virtual void peek(size_t chunk, std::byte* to) = 0;

  // Visits the pieces of one parameter in order, in host memory, and with `change` puts them back. The memory is valid
  // during the call of `visit`. Throws if a piece cannot be read: those before it have been visited.
  using Visit = std::function<void(const Piece& piece, std::byte* memory)>;
  void visit(int64_t param, bool change, const Visit& visit);

  // Copies bytes [offset, offset + bytes) of all codes (or scales) of state k of a parameter, as if they were one
  // array: into the store if `from` is not null, else out of it to `to`. Throws as visit() does.
  struct Part {
    int64_t param = 0;
    int k = 0;
    bool scales = false;
  };
  void copy(const Part& part, int64_t offset, int64_t bytes, std::byte* to, const std::byte* from);
  // Call this after changes: the last of them are still to be written. Throws KeptInMemory, once, if chunks that
  // visit() or copy() changed could not be written: the next step tries again.
  void check_written();
  // Failures of earlier changes are not reported any more.
  void forget_unwritten() { unwritten_ = nullptr; }

  // Waits for what steps have queued.
  virtual void synchronize() {}

  // The fields that a store knows; the others are 0. kept_bytes are in allocated_bytes, too, and streaming buffers in
  // the bytes of where they are.
  virtual MemoryReport report() const = 0;

 protected:
  Store(StagedChunk::Read read, StagedChunk::Write write) : stage_(std::move(read), std::move(write)) {}

  struct Place {
    size_t chunk, piece;
  };
  using Index = std::unordered_map<int64_t, std::vector<Place>>;  // by parameter
  // The index of new parameters in `chunks`, which come behind the `before` chunks of the store. Throws
  // kInvalidArgument for a parameter that the store has.
  Index index_of(std::span<const Chunk> chunks, size_t before) const;
  // By chunk, whether it holds some of the `wanted` parameters, or is kept, which is due whatever is wanted; empty if
  // `wanted` is.
  std::vector<bool> due_chunks(const std::vector<int64_t>& wanted) const;
  int64_t kept_bytes() const;
  // A change by visit() or copy() could not be written, which the caller is handling.
  void note_unwritten() {
    if (!unwritten_) unwritten_ = std::current_exception();
  }

  virtual void pass(const Work& work, bool changes, int threads, const std::vector<int64_t>& wanted, void* stream) = 0;
  virtual size_t chunks() const = 0;
  // Whether the chunk belongs on the disk, and is in host memory because it could not be written.
  virtual bool is_kept(size_t chunk) const = 0;
  virtual const Chunk& chunk_at(size_t chunk) const = 0;
  // The bytes of a chunk that is to be stepped at `memory`, if the host has them there.
  virtual const std::byte* host_memory(std::byte* memory) const = 0;
  // All that is queued has happened, and changes by the host are where their chunk is.
  virtual void settle() = 0;
  // The chunk where the host can read and write it, until the next call for another chunk: its own memory, or stage_.
  virtual std::byte* bring(size_t chunk) = 0;

  void tell(std::span<const PlacedChunk> chunks) const;

  Told told_;
  Index pieces_;
  Pager pager_{TierPlan{}};
  StepOrder order_;
  StagedChunk stage_;
  std::exception_ptr unwritten_;  // the first since it was asked for

 private:
  mutable std::vector<int64_t> last_wanted_;  // by due_chunks, which mostly wants the same again
  mutable std::vector<bool> last_chunks_;
  mutable size_t last_size_ = 0;  // size of pieces_, which only grow
};

}  // namespace lowtide
