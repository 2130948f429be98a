#include "sign/cost.h"

#include <algorithm>
#include <vector>

#include "sign/exchange.h"
#include "sign/rounds.h"

namespace lowtide {

SignAlgorithm faster(const Cost& cost, int ranks, int64_t bytes) {
  const double more = (ranks - 1) * (1 - 2.0 / ranks) * static_cast<double>(bytes);
  return ranks == 1 || more < cost.latency_s * cost.bytes_per_s ? SignAlgorithm::kOnePhase : SignAlgorithm::kTwoPhase;
}

Cost measure(Channel& channel) {
  constexpr int kTimes = 3;  // the best one counts: the first is often slow
  // A rank sends as much whatever the number of ranks, unless messages would become too small to show a rate.
  const int64_t bytes = std::max<int64_t>((256 << 10) / std::max(channel.size() - 1, 1), 8 << 10);
  wire::Measurement mine;
  gather_measurements(channel, mine);  // from now on all ranks are here
  std::vector<std::byte> small(1), large(static_cast<size_t>(bytes)), all(static_cast<size_t>(bytes * channel.size()));
  double latency = 0, busy = 0;
  for (int i = 0; i < kTimes; ++i) {
    double seconds[2] = {};
    Stopwatch watch;
    channel.all_gather(Channel::Level::kInside, small.data(), all.data(), 1);
    watch.lap(&seconds[0]);
    channel.all_gather(Channel::Level::kInside, large.data(), all.data(), bytes);
    watch.lap(&seconds[1]);
    latency = i ? std::min(latency, seconds[0]) : seconds[0];
    busy = i ? std::min(busy, seconds[1]) : seconds[1];
  }
  constexpr double kShortest = 1e-9;
  mine.latency_s = std::max(latency, kShortest);
  mine.bytes_per_s = static_cast<double>(bytes * (channel.size() - 1)) / std::max(busy - latency, kShortest);
  Cost agreed{mine.latency_s, mine.bytes_per_s};
  for (const wire::Measurement& each : gather_measurements(channel, mine)) {
    agreed.latency_s = std::max(agreed.latency_s, each.latency_s);
    agreed.bytes_per_s = std::min(agreed.bytes_per_s, each.bytes_per_s);
  }
  return agreed;
}

}  // namespace lowtide
