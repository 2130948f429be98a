// Transfers bytes between memory and one file: cuts transfers into requests, keeps `depth` requests running, compares
// every result with its request, resumes short requests and retries interrupted ones. Used by one thread at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <vector>

#include "core/buffer.h"
#include "memory/io_engine.h"

namespace lowtide {

class Transfers {
 public:
  using Ticket = int64_t;
  static constexpr int64_t kAlignment = kPageBytes;

  // Says whether and how a transfer failed. A failure with system_error 0 means that the file is too short.
  struct Outcome {
    bool failed = false, write = false;
    int system_error = 0;
    int64_t offset = 0, bytes = 0;  // the request that failed
  };

  // With `aligned`, even resumed requests must be multiples of kAlignment (O_DIRECT).
  Transfers(std::unique_ptr<IoEngine> engine, int depth, int64_t request_bytes, bool aligned);
  ~Transfers();  // waits for all transfers
  Transfers(const Transfers&) = delete;
  Transfers& operator=(const Transfers&) = delete;

  // Starts a transfer. Requests beyond `depth` start when start() or wait() sees that earlier requests have finished.
  Ticket start(bool write, int64_t offset, std::byte* memory, int64_t bytes);
  // Blocks until no request of the transfer is running, whether the transfer failed or not. The ticket is then void.
  Outcome wait(Ticket ticket);
  bool knows(Ticket ticket) const { return transfers_.contains(ticket); }
  bool idle() const { return transfers_.empty(); }  // true if wait() has returned for every ticket
  const IoEngine& engine() const { return *engine_; }
  // Drops the engine without waiting. For a forked child, which has neither the engine's threads nor its ring.
  void abandon() { static_cast<void>(engine_.release()); }

 private:
  struct Transfer {
    std::byte* memory;
    int64_t offset, bytes;  // the rest, for which no request has been made yet
    int under_way = 0;
    Outcome outcome;
    bool over() const { return under_way == 0 && (bytes == 0 || outcome.failed); }
  };
  struct Piece : IoRequest {
    Transfer* of = nullptr;
    int stalls = 0;  // number of consecutive stalls
  };

  void issue();
  void settle(Piece* piece);
  void fail(Piece* piece, int system_error);
  void finish(Piece* piece);

  std::unique_ptr<IoEngine> engine_;
  const int64_t request_bytes_;
  const bool aligned_;
  std::vector<Piece> pieces_;
  std::vector<Piece*> free_;
  std::map<Ticket, Transfer> transfers_;
  std::deque<Transfer*> waiting_;  // transfers with bytes for which no request has been made
  Ticket last_ = 0;
};

}  // namespace lowtide
