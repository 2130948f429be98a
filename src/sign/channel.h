// Connects the ranks of a collective over one transport, or over two (inside nodes and between nodes). Counts the bytes
// sent and measures the cost of sending.
//
// A channel shares ownership of its transports and is used only by the collective's thread. It passes on the
// transports' exceptions; with two levels, a TransportError names ranks of the whole collective. After a failure the
// ranks may be in different calls, so every later call throws TransportError.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "lowtide/sign_collective.h"

namespace lowtide {

class Channel {
 public:
  // `between` is nullptr for a single transport. Throws kInvalidArgument if a transport has an impossible rank or size.
  Channel(std::shared_ptr<Transport> inside, std::shared_ptr<Transport> between);

  int rank() const { return rank_; }
  int size() const { return size_; }
  bool two_level() const { return between_ != nullptr; }
  int inside_size() const { return inside_->size(); }
  int inside_rank() const { return inside_->rank(); }
  int nodes() const { return between_ ? between_->size() : 1; }
  int node() const { return between_ ? between_->rank() : 0; }

  // Gathers the records of a control round into all[size() * wire::kRecordBytes], ordered by rank.
  void gather_records(const void* record, std::byte* all);

  // Exchange payload messages. A level with one rank only copies them. `control` is the number of bytes in each message
  // that are not payload.
  enum class Level { kInside, kBetween };
  void all_to_all(Level level, const std::byte* send, std::byte* receive, int64_t bytes_each, int64_t control = 0);
  void all_gather(Level level, const std::byte* send, std::byte* receive, int64_t bytes);

  struct Traffic {
    int64_t payload = 0, control = 0;  // bytes sent to other ranks; the same number was received
  };
  const Traffic& traffic() const { return traffic_; }
  void reset_traffic() { traffic_ = {}; }

 private:
  using Call = void (Transport::*)(const std::byte* send, std::byte* receive, int64_t bytes);
  // Adds the number of bytes sent to other ranks to *sent.
  void transfer(Level level, Call call, const std::byte* send, std::byte* receive, int64_t bytes, int64_t* sent);

  std::shared_ptr<Transport> inside_, between_;
  int rank_, size_;
  Traffic traffic_;
  std::string failure_;  // text of the first failure; "" if there was none
};

// The cost model of a transport.
struct Cost {
  double latency_s = 0, bytes_per_s = 0;  // 0: unknown
  bool known() const { return latency_s > 0 && bytes_per_s > 0; }
};

// Returns the faster algorithm for ballots of `bytes` bytes. One phase sends (ranks - 1) ballots; two phases send 2
// (ranks - 1) / ranks ballots and take a second latency. Pure.
SignAlgorithm faster(const Cost& cost, int ranks, int64_t bytes);

// Measures a channel with one level; all ranks agree on the slowest rank's figures. Blocks until all ranks have joined.
// Throws CollectiveError if some ranks are in another call, TransportError or std::bad_alloc.
Cost measure(Channel& channel);

// Returns text such as "rank 3" or "ranks 1, 2 and 5".
inline std::string name_ranks(const std::vector<int>& ranks) {
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  for (size_t i = 0; i < ranks.size(); ++i)
    text += (i == 0 ? "" : i + 1 == ranks.size() ? " and " : ", ") + std::to_string(ranks[i]);
  return text;
}

}  // namespace lowtide
