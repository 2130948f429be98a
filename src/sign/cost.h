// What a call over a transport takes, and which algorithm is the faster by it.
#pragma once

#include <cstdint>

#include "lowtide/sign_collective.h"
#include "sign/channel.h"

namespace lowtide {

struct Cost {
  double latency_s = 0, bytes_per_s = 0;  // 0: not known
  bool known() const { return latency_s > 0 && bytes_per_s > 0; }
};

// For ballots of `bytes` bytes. One phase sends (ranks - 1) of them, two phases 2 (ranks - 1) / ranks with a second
// latency.
SignAlgorithm faster(const Cost& cost, int ranks, int64_t bytes);

// Measures a channel of one level, all ranks together: all get the same. Throws CollectiveError if some are at
// something else.
Cost measure(Channel& channel);

}  // namespace lowtide
