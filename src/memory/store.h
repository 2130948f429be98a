// The state of a set of parameters, cut into chunks that live wherever there is room. What all stores have in common:
// which pieces a parameter has, and how the host reads and changes them between steps.
//
// Used by one thread at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "memory/chunk.h"

namespace lowtide {

struct StoreReport {
  int64_t chunks = 0;
  int64_t resident_bytes = 0, slot_bytes = 0;  // in RAM
  int64_t device_bytes = 0;                    // in device memory, slots included
  int64_t managed_bytes = 0;                   // in memory that migrates between device and host
  int64_t disk_bytes = 0;                      // in the file
  int64_t kept_bytes = 0;                      // in RAM because they could not be written
  int64_t moved_per_step = 0;                  // predicted: read + written
  int64_t read_bytes = 0, written_bytes = 0;   // so far
  double waited_seconds = 0;                   // that steps stood still for the disk
  int64_t promotions = 0, demotions = 0;       // times that state has moved to the device, and away
  std::string transfer;                        // how what is not in device memory gets there; "": nothing has to
};

class Store {
 public:
  virtual ~Store() = default;

  // Adds the zeroed state of parameters, which the store does not have yet, behind what it has, and plans anew. Throws
  // kInvalidArgument (the budgets cannot hold it), kOutOfMemory or kIo, and changes nothing.
  virtual void add(std::span<const ShapedParam> params) = 0;
  bool has(int64_t param) const { return pieces_.contains(param); }
  size_t pieces(int64_t param) const { return pieces_.at(param).size(); }

  // A chunk where it is stepped: its record is read at `memory`, and changes go to `write_offset` bytes from there.
  struct PlacedChunk {
    std::span<const Piece> pieces;
    std::byte* memory = nullptr;
    int64_t write_offset = 0;
  };
  // Every chunk once, one or several in a call: work(chunks) may change the parts of their pieces, or queue that on
  // `stream`. An error that stops the step half way passes through: chunks for which `work` has returned are changed,
  // others are not; the caller's own count says which.
  using Work = std::function<void(std::span<const PlacedChunk> chunks)>;
  // Only chunks that hold some of the `wanted` parameters are brought (empty: all).
  virtual void step(const Work& work, int threads = 1, const std::vector<int64_t>& wanted = {},
                    void* stream = nullptr) = 0;

  // The same of work that changes nothing: chunks are read, and not written. Throws before the first or after the last.
  virtual void look(const Work& work, int threads = 1, const std::vector<int64_t>& wanted = {},
                    void* stream = nullptr) = 0;

  // Visits the pieces of one parameter in order, in memory of the host; `change`: and puts them back. Throws if one
  // cannot be read: those before it have been visited.
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
  virtual void check_written() = 0;
  // What an earlier change could not write is not reported again.
  virtual void forget_unwritten() {}

  // Waits for what steps have queued.
  virtual void synchronize() {}

  virtual StoreReport report() const = 0;

 protected:
  struct Place {
    size_t chunk, piece;
  };
  using Index = std::unordered_map<int64_t, std::vector<Place>>;  // of each parameter
  // Of chunks that come behind the first `before`.
  static Index index_of(std::span<const Chunk> chunks, size_t before);
  // Of the parameters of `wanted`; empty if that is.
  std::vector<bool> chunks_of(const std::vector<int64_t>& wanted, size_t chunks) const;

  virtual const Chunk& chunk_at(size_t chunk) const = 0;
  // The chunk where the host can read and write it, until the next call of either.
  virtual std::byte* bring(size_t chunk) = 0;
  // After a change to what bring() gave.
  virtual void put_back(size_t chunk) = 0;

  Index pieces_;
};

}  // namespace lowtide
