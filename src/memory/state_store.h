// The state of a set of parameters under one budget: cut into chunks, of which as many stay in RAM as fit and the rest
// lives in a scratch file and streams through a ring of slots, every step. Where a chunk is never changes a bit of it.
//
// Used by one thread at a time. An error leaves every chunk either as it was or as it should be, and the store usable:
// a chunk that could not be written stays in RAM (above the budget) until a later write succeeds.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "memory/file_queues.h"
#include "memory/pager.h"
#include "memory/store.h"
#include "memory/store_plan.h"

namespace lowtide {

class StateStore final : public Store {
 public:
  StateStore(Env& env, StoreOptions options) : env_(env), options_(std::move(options)) {}

  // Throws kInvalidArgument, kOutOfMemory or kIo, and changes nothing.
  void add(std::span<const ShapedParam> params) override;
  // If the disk fails, throws kIo.
  void step(const Work& work, int threads = 1, const std::vector<int64_t>& wanted = {},
            void* stream = nullptr) override;
  void look(const Work& work, int threads = 1, const std::vector<int64_t>& wanted = {},
            void* stream = nullptr) override;
  // That a changed chunk cannot be written stops nothing: it is kept in RAM.
  void check_written() override;
  void forget_unwritten() override { unwritten_ = {}; }

  // The memory of chunks in RAM; the slots' is freed first (they are allocated again when they are used).
  std::vector<const Buffer*> shrink();

  StoreReport report() const override;

 private:
  const Chunk& chunk_at(size_t chunk) const override { return chunks_[chunk].chunk; }
  void pass(const Work& work, int threads, const std::vector<int64_t>& wanted, bool changes);
  void read_checked(size_t chunk, std::byte* to);
  void write_checked(size_t chunk, ChunkRecord& record, const std::byte* from);
  std::byte* bring(size_t chunk) override;
  void put_back(size_t chunk) override;
  void write_changed();
  void drop_prefetched();

  Env& env_;
  StoreOptions options_;
  std::vector<ChunkRecord> chunks_;
  Pager pager_{Plan{}};
  std::unique_ptr<ScratchFile> file_;
  std::vector<Buffer> slots_;
  int64_t in_slot_ = -1;  // between steps: the chunk that bring() put into slot 0
  bool in_slot_changed_ = false;
  std::unique_ptr<FileQueues> queues_;
  Traffic traffic_;
  WriteFailure unwritten_;  // of visit() and copy()
};

}  // namespace lowtide
