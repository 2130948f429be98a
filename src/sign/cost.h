// The cost model of a transport, and the algorithm that it says is faster.
#pragma once

#include <cstdint>

#include "lowtide/sign_collective.h"
#include "sign/channel.h"

namespace lowtide {

struct Cost {
  double latency_s = 0, bytes_per_s = 0;  // 0: not known
  bool known() const { return latency_s > 0 && bytes_per_s > 0; }
};

// For ballots of `bytes` bytes. One phase sends (ranks - 1) of them; two phases send 2 (ranks - 1) / ranks of them and
// take a second latency. Pure.
SignAlgorithm faster(const Cost& cost, int ranks, int64_t bytes);

// Measures a channel of one level, and agrees on the slowest rank's figures. Blocks until all ranks have come. Throws
// CollectiveError if some are in another call, TransportError, std::bad_alloc.
Cost measure(Channel& channel);

}  // namespace lowtide
