// The pager's queues for a synchronous backend. Chunks are in a file and slots are in RAM. Reads and writes run in the
// background; steps run at once in the calling thread.
#pragma once

#include <exception>
#include <vector>

#include "core/buffer.h"
#include "memory/filed_chunk.h"
#include "memory/pager.h"
#include "memory/scratch_file.h"

namespace lowtide {

// A chunk in RAM or in the file.
struct ChunkRecord : FiledChunk {
  Buffer memory;  // set if the chunk is resident, or kept because it could not be written
};

class FileQueues final : public Queues {
 public:
  // Borrows all arguments for the object's lifetime. A slot without memory gets `slot_bytes` when it is used.
  FileQueues(Env& env, ScratchFile* file, std::vector<ChunkRecord>& chunks, std::vector<Buffer>& slots,
             int64_t slot_bytes, Traffic& traffic)
      : env_(env), file_(file), chunks_(chunks), slots_(slots), slot_bytes_(slot_bytes), traffic_(traffic) {}
  ~FileQueues() override { finish(); }

  // Call this before each step; `work` must outlive the step. Allocates memory for the step's bookkeeping. Running
  // transfers count as reads ahead for the step. Without `changes`, the work changes no chunks, and none is written.
  void begin_step(const ChunkWork& work, int threads, bool changes);

  void read(int chunk, int slot) override;
  void step(int chunk, int slot) override;
  void write(int chunk, int slot) override;
  Event record(Queue queue) override;
  void wait(Queue queue, Event event) override;

  // Wait for the writes, or for everything, and ignore failed reads for which nobody has waited. Chunks that could not
  // be written stay in RAM. Return the first failure (see KeptInMemory).
  std::exception_ptr finish_writes() noexcept { return finish(false); }
  std::exception_ptr finish() noexcept { return finish(true); }

 private:
  struct Transfer {
    ScratchFile::Ticket ticket;
    int chunk, slot;
    bool is_write;
    bool over = false, ahead = false;
  };
  void complete(Transfer& transfer);
  void receive(const Transfer& transfer);
  std::exception_ptr finish(bool reads) noexcept;
  void keep_unwritten(const Transfer& transfer) noexcept;

  Env& env_;
  ScratchFile* file_;
  std::vector<ChunkRecord>& chunks_;
  std::vector<Buffer>& slots_;
  int64_t slot_bytes_;
  const ChunkWork* work_ = nullptr;
  int threads_ = 1;  // for checksums
  bool changes_ = true;
  Traffic& traffic_;
  std::vector<Transfer> transfers_;  // from the oldest running one; an event is the number of a transfer, counted from
                                     // 0
  Event first_event_ = 0;            // the event of transfers_[0]
  Event waited_[2] = {0, 0};         // for reads and for writes: all earlier transfers are done
  std::exception_ptr write_failure_;
};

}  // namespace lowtide
