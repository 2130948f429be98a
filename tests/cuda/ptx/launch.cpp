#include "launch.h"

#include <algorithm>
#include <deque>
#include <numeric>

#include "warp.h"

namespace ptx {
namespace {

// Until all warps have ended, from one barrier of the block to the next.
void run_block(Team& team, std::deque<Warp>& warps) {
  const auto count = static_cast<uint32_t>(warps.size());
  for (uint32_t i = 0; i < count; ++i) warps[i].begin(team, i, std::min(kWarp, team.block_threads - i * kWarp));
  team.shared.begin(team.program);
  for (;;) {
    const uint32_t first = team.random.below(count);
    uint32_t ended = 0;
    for (uint32_t i = 0; i < count; ++i) {
      Warp& warp = warps[(first + i) % count];
      warp.run();
      ended += warp.has_ended();
    }
    if (ended == count) return;
    if (ended)
      for (Warp& warp : warps)
        if (warp.is_at_barrier())
          warp.fail(0, "a barrier of the block to which " + std::to_string(ended) + " warps never come");
    team.shared.barrier();
    for (Warp& warp : warps) warp.leave_barrier();
  }
}

}  // namespace

Range Team::range(uint64_t address, uint64_t bytes) {
  const auto holds = [&](const Range& r) { return address >= r.begin && address + bytes <= r.end; };
  for (size_t i = 0; i < ranges.size(); ++i) {
    if (!holds(ranges[i])) continue;
    const Range found = ranges[i];
    if (i) std::swap(ranges[i], ranges[i - 1]);
    return found;
  }
  const Range range = find(address);
  if (range.begin == range.end || !holds(range)) return {};
  ranges.push_back(range);
  return range;
}

Work run_grid(const Program& program, const std::vector<std::byte>& parameters, uint32_t grid, uint32_t threads,
              const Find& find, const Policy& policy) {
  // Kept for their memory.
  static thread_local std::deque<Warp> warps;
  static thread_local SharedMemory shared;
  ++program.launches;
  warps.resize((threads + kWarp - 1) / kWarp);
  Team team{program, parameters, grid, threads, find, policy, Random(policy.seed), shared, 0, {}, 0, 0};
  // A random order of blocks: i -> (a i + b) mod n, a prime to n.
  const uint64_t n = std::min(grid, policy.blocks);
  uint64_t a = 1;
  do a = 1 + team.random.below(n);
  while (std::gcd(a, n) != 1);
  const uint64_t b = team.random.below(n);
  for (uint64_t i = 0; i < n; ++i) {
    team.block = static_cast<uint32_t>((i * a + b) % n);
    run_block(team, warps);
  }
  return {team.steps, team.lane_steps};
}

}  // namespace ptx
