// The state of a set of parameters under one budget, cut into chunks that live wherever there is room. Store is the
// common interface: StateStore keeps chunks in RAM and on disk, DeviceStore on a device, in host memory and on disk.
// The bits of a chunk do not depend on where it lives.
//
// Ownership: a store owns the memory of its chunks. Its constructor's arguments must outlive it.
// Threads: one thread at a time uses a store. A step's `work` runs on that thread.
// Streams: a StateStore has finished a step when the call returns. A DeviceStore queues the step on the caller's
// `stream` and its own queues, after the whole previous step, and returns without waiting; calls that read or change
// state on the host first wait for the queues.
// Errors: each function says what it throws. After any exception, every chunk has either its old or its new contents,
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

// Learns the order in which parts of the parameters are stepped. Gradient release steps one bucket of parameters after
// another, in the same order in every iteration. The next step therefore does not want the chunks of the current one,
// but the chunks of the bucket that followed it last time.
class StepOrder {
 public:
  // Records a step of these parameters (all if empty); `changes` says whether the step changes their state. Returns the
  // parameters of the step that followed this one last time, valid until the next call, or nullptr if no step has
  // followed it yet. A step of all parameters is assumed to be followed by a step of all parameters.
  //
  // The first parameter identifies a step. Chunks could not, because buckets of small parameters share them.
  const std::vector<int64_t>* next_after(const std::vector<int64_t>& wanted, bool changes) {
    Step& step = steps_[{wanted.empty() ? -1 : wanted.front(), changes}];
    step.wanted = wanted;
    note_parts(wanted);
    if (last_) last_->next = &step;
    last_ = &step;
    if (!step.next && !wanted.empty()) return nullptr;
    return &(step.next ? step.next : &step)->wanted;
  }
  // Returns true if the last step began an iteration, that is, if one of its parameters had already been stepped in the
  // previous iteration. Otherwise the step was another bucket of the same iteration.
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
  std::vector<int64_t> stepped_;  // by parameter: the last iteration that stepped it
  int64_t iteration_ = 0;
  bool begins_ = true;
};

// The kIo error of a call that ran to its end although the disk refused a write; the unwritten chunks are kept in RAM.
// Until it is thrown, the failure is stored as the std::exception_ptr of the first failed write, which needs no memory.
class KeptInMemory : public Error {
 public:
  using Error::Error;
};

// Throws KeptInMemory if `failure` is set. `done` names the call that is complete nevertheless ("step").
void raise_kept(std::exception_ptr failure, const char* done, int64_t kept_bytes);

class Store {
 public:
  using PlacedChunk = lowtide::PlacedChunk;
  using Work = ChunkWork;

  virtual ~Store() = default;

  // Adds the zeroed state of new parameters after the existing state and plans again. Throws kInvalidArgument (the
  // budgets cannot hold the state), kOutOfMemory or kIo, and then changes nothing.
  virtual void add(std::span<const ShapedParam> params) = 0;
  bool has(int64_t param) const { return pieces_.contains(param); }
  size_t pieces(int64_t param) const { return pieces_.at(param).size(); }

  // Visits every chunk once, one or several per call: work(chunks) changes their pieces or queues the change on
  // `stream`. Visits only chunks that hold some of the `wanted` parameters (all if empty). `threads` is the number of
  // threads for checksums. Throws exceptions of `work`, kIo, kOutOfMemory or kDeviceLost. An error may stop the step
  // half-way: chunks for which `work` has returned are changed and the others are not; the caller must count them.
  // KeptInMemory is thrown after the last chunk.
  void step(const Work& work, int threads = 1, const std::vector<int64_t>& wanted = {}, void* stream = nullptr) {
    if (!told_) return pass(work, true, threads, wanted, stream);
    const Work told = [&](std::span<const PlacedChunk> chunks) {
      tell(chunks);
      work(chunks);
    };
    pass(told, true, threads, wanted, stream);
  }
  // Visits chunks like step(), for work that changes nothing: chunks are read but not written. Throws only before the
  // first chunk or after the last.
  void look(const Work& work, int threads = 1, const std::vector<int64_t>& wanted = {}, void* stream = nullptr) {
    pass(work, false, threads, wanted, stream);
  }

  // -- Copying the current chunks while steps go on

  // Waits for queued work. From then on, peek() of a chunk gives its current bytes until `told` is called for that
  // chunk. step() calls told(chunk, memory) before each change of a chunk; `memory` holds the chunk's bytes, or is
  // nullptr if the host does not have them. `told` must not throw; an empty `told` stops the calls. Changes by visit()
  // or copy() are not announced.
  using Told = std::function<void(size_t chunk, const std::byte* memory)>;
  void watch(Told told);
  void unwatch() { told_ = nullptr; }
  size_t chunk_count() const { return chunks(); }
  const Chunk& chunk(size_t number) const { return chunk_at(number); }
  // Copies all bytes of a chunk to page-aligned host memory. Changes nothing in the store and drops no chunk that was
  // read ahead. Any thread may call this while no other thread is in a call of this store. Throws kIo or kDeviceLost.
  virtual void peek(size_t chunk, std::byte* to) = 0;

  // Visits the pieces of one parameter in order, in host memory, and with `change` writes them back. The memory is
  // valid during the call of `visit`. Throws if a piece cannot be read; earlier pieces have then been visited.
  using Visit = std::function<void(const Piece& piece, std::byte* memory)>;
  void visit(int64_t param, bool change, const Visit& visit);

  // Copies bytes [offset, offset + bytes) of all codes (or scales) of state k of a parameter, as if they were one
  // array. If `from` is not null, copies from there into the store, else from the store to `to`. Throws like visit().
  struct Part {
    int64_t param = 0;
    int k = 0;
    bool scales = false;
  };
  void copy(const Part& part, int64_t offset, int64_t bytes, std::byte* to, const std::byte* from);
  // Call this after changes, because the last changes have not been written yet. Throws KeptInMemory, once, if chunks
  // that visit() or copy() changed could not be written; the next step tries again.
  void check_written();
  // Stops reporting failures of earlier changes.
  void forget_unwritten() { unwritten_ = nullptr; }

  // Waits for the queued work of steps.
  virtual void synchronize() {}

  // Fills the fields that a store knows; the others are 0. allocated_bytes includes kept_bytes, and the bytes of each
  // memory include its streaming buffers.
  virtual MemoryReport report() const = 0;

 protected:
  Store(StagedChunk::Read read, StagedChunk::Write write) : stage_(std::move(read), std::move(write)) {}

  struct Place {
    size_t chunk, piece;
  };
  using Index = std::unordered_map<int64_t, std::vector<Place>>;  // by parameter
  // Returns the index of new parameters in `chunks`, which follow the store's `before` existing chunks. Throws
  // kInvalidArgument for a parameter that the store already has.
  Index index_of(std::span<const Chunk> chunks, size_t before) const;
  // Returns, for each chunk, true if it holds some of the `wanted` parameters or is kept in memory, which makes it due
  // in any case. Returns an empty vector if `wanted` is empty.
  std::vector<bool> due_chunks(const std::vector<int64_t>& wanted) const;
  int64_t kept_bytes() const;
  // Notes that a change by visit() or copy() could not be written. Call this in a catch block.
  void note_unwritten() {
    if (!unwritten_) unwritten_ = std::current_exception();
  }

  virtual void pass(const Work& work, bool changes, int threads, const std::vector<int64_t>& wanted, void* stream) = 0;
  virtual size_t chunks() const = 0;
  // Returns true if the chunk belongs on disk but is in host memory because it could not be written.
  virtual bool is_kept(size_t chunk) const = 0;
  virtual const Chunk& chunk_at(size_t chunk) const = 0;
  // Returns the bytes of a chunk that will be stepped at `memory` if the host can read them there, else nullptr.
  virtual const std::byte* host_memory(std::byte* memory) const = 0;
  // Completes all queued work and writes the host's changes to their chunks.
  virtual void settle() = 0;
  // Makes the chunk accessible to the host, in its own memory or in stage_, until the next call for another chunk.
  virtual std::byte* bring(size_t chunk) = 0;

  void tell(std::span<const PlacedChunk> chunks) const;

  Told told_;
  Index pieces_;
  Pager pager_{TierPlan{}};
  StepOrder order_;
  StagedChunk stage_;
  std::exception_ptr unwritten_;  // the first failure since the last report

 private:
  mutable std::vector<int64_t> last_wanted_;  // for due_chunks(), whose argument rarely changes
  mutable std::vector<bool> last_chunks_;
  mutable size_t last_size_ = 0;  // the size of pieces_, which only grows
};

}  // namespace lowtide
