// A store in RAM and on disk. As many chunks as fit stay in RAM; the rest lives in a scratch file and streams through a
// ring of slots in every step.
//
// A chunk that cannot be written stays in RAM, above the budget, until a later write succeeds. Functions that change
// state then still run to their end and throw KeptInMemory. They throw kIo if a chunk cannot be read or is damaged.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "memory/file_queues.h"
#include "memory/store.h"
#include "memory/plan.h"

namespace lowtide {

class StateStore final : public Store {
 public:
  StateStore(Env& env, StoreOptions options);

  void add(std::span<const ShapedParam> params) override;
  void peek(size_t chunk, std::byte* to) override;

  // Frees the slots' memory (allocated again on use) and returns the memory of the chunks in RAM.
  std::vector<const Buffer*> shrink();

  MemoryReport report() const override;

 private:
  size_t chunks() const override { return chunks_.size(); }
  bool is_kept(size_t chunk) const override { return !pager_.plan().resident[chunk] && chunks_[chunk].memory.data(); }
  const Chunk& chunk_at(size_t chunk) const override { return chunks_[chunk].chunk; }
  const std::byte* host_memory(std::byte* memory) const override { return memory; }
  void settle() override { stage_.write_back(); }
  void pass(const Work& work, bool changes, int threads, const std::vector<int64_t>& wanted, void* stream) override;
  std::byte* bring(size_t chunk) override;
  void write_staged(size_t chunk, const std::byte* from);
  void drop_prefetched();

  Env& env_;
  StoreOptions options_;
  std::vector<ChunkRecord> chunks_;
  std::unique_ptr<ScratchFile> file_;
  std::vector<Buffer> slots_;  // between steps, the first slot is the staging memory
  std::unique_ptr<FileQueues> queues_;
  Traffic traffic_;
};

}  // namespace lowtide
