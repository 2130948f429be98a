// The state of a set of parameters under one budget: cut into chunks, of which as many stay in RAM as fit and the rest
// lives in a scratch file and streams through a ring of slots, every step. Where a chunk is never changes a bit of it.
//
// Used by one thread at a time. An error leaves every chunk either as it was or as it should be, and the store usable:
// a chunk that could not be written stays in RAM (above the budget) until a later write succeeds.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "memory/file_lanes.h"
#include "memory/pager.h"
#include "memory/store_plan.h"

namespace lowtide {

struct StoreReport {
  int64_t chunks = 0;
  int64_t resident_bytes = 0, slot_bytes = 0;  // in RAM
  int64_t disk_bytes = 0;                      // in the file
  int64_t kept_bytes = 0;                      // in RAM because they could not be written
  int64_t moved_per_step = 0;                  // predicted: read + written
  int64_t read_bytes = 0, written_bytes = 0;   // so far
  double waited_seconds = 0;                   // that steps stood still for the disk
};

class StateStore {
 public:
  StateStore(Env& env, StoreOptions options) : env_(env), options_(std::move(options)) {}

  // Adds the zeroed state of parameters, which the store does not have yet, behind what it has, and plans anew. Throws
  // kInvalidArgument (the budgets cannot hold it), kOutOfMemory or kIo, and changes nothing.
  void add(std::span<const ShapedParam> params);
  bool has(int64_t param) const { return pieces_.contains(param); }
  size_t pieces(int64_t param) const { return pieces_.at(param).size(); }

  // Every piece once: work(piece, memory of its chunk) may change the piece's part of the record. Pieces of one chunk
  // come in one call. If the disk fails, throws kIo: chunks for which `work` was called are changed, others are not;
  // message and the caller's own count say which.
  using Work = std::function<void(std::span<const Piece> pieces, std::byte* memory)>;
  // Only chunks that hold some of the `wanted` parameters are brought (empty: all).
  void step(const Work& work, int threads = 1, const std::vector<int64_t>& wanted = {});

  // Visits the pieces of one parameter in order; `change`: and puts them back. Throws kIo if one cannot be read: those
  // before it have been visited. That one cannot be written stops nothing: see check_written().
  using Visit = std::function<void(const Piece& piece, std::byte* memory)>;
  void visit(int64_t param, bool change, const Visit& visit);

  // Copies bytes [offset, offset + bytes) of all codes (or scales) of state k of a parameter, as if they were one
  // array; `from` not null: into the store, else out of it to `to`. Throws as visit() does.
  struct Part {
    int64_t param = 0;
    int k = 0;
    bool scales = false;
  };
  void copy(const Part& part, int64_t offset, int64_t bytes, std::byte* to, const std::byte* from);
  // To be called after changes: the last of them are still to be written. Throws kIo, once, if chunks that visit() or
  // copy() changed could not be written: they are kept in RAM, and the next step tries again.
  void check_written();
  // What an earlier change could not write is not reported again.
  void forget_unwritten() { unwritten_ = {}; }

  // The memory of chunks in RAM; the slots' is freed first (they are allocated again when they are used).
  std::vector<const Buffer*> shrink();

  StoreReport report() const;

 private:
  struct Place {
    size_t chunk, piece;
  };
  void read_checked(size_t chunk, std::byte* to);
  void write_checked(size_t chunk, ChunkRecord& record, const std::byte* from);
  std::byte* bring(size_t chunk);
  void put_back(size_t chunk);
  void write_changed();
  void drop_prefetched();

  Env& env_;
  StoreOptions options_;
  std::vector<ChunkRecord> chunks_;
  std::unordered_map<int64_t, std::vector<Place>> pieces_;  // of each parameter
  Pager pager_{Plan{}};
  std::unique_ptr<ScratchFile> file_;
  std::vector<Buffer> slots_;
  int64_t in_slot_ = -1;  // between steps: the chunk that bring() put into slot 0
  bool in_slot_changed_ = false;
  std::unique_ptr<FileLanes> lanes_;
  Traffic traffic_;
  WriteFailure unwritten_;  // of visit() and copy()
};

}  // namespace lowtide
