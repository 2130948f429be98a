#include "block.h"

#include <algorithm>
#include <cstdio>
#include <numeric>

uint3 threadIdx, blockIdx;
dim3 blockDim, gridDim;

namespace cuda_emulator {
namespace {

constexpr uint32_t kWarp = warpSize;

const char* name_of(Meeting kind) {
  return kind == Meeting::kShuffle ? "a shuffle" : kind == Meeting::kBallot ? "a ballot" : "__syncwarp";
}

template <class... Values>
std::string format(const char* text, Values... values) {
  char out[256];
  std::snprintf(out, sizeof out, text, values...);
  return out;
}

}  // namespace

Failure BlockRunner::run(const std::function<void()>& body, dim3 grid, dim3 block, Random& random) {
  failure_ = {};
  const std::function<void()> guarded = [&] {
    try {
      body();
    } catch (const Abandoned&) {
    }
  };
  fibers_.prepare(static_cast<int>(block.x), &guarded);
  threads_.resize(block.x);
  blockDim = block, gridDim = grid;
  // A random order of many blocks without a list of them: i -> (a i + b) mod n with a prime to n.
  uint32_t a = 1;
  do a = 1 + random.below(grid.x);
  while (std::gcd(a, grid.x) != 1);
  const uint64_t b = random.below(grid.x);
  for (uint64_t i = 0; i < grid.x && failure_.reason.empty(); ++i) {
    blockIdx = {static_cast<uint32_t>((i * a + b) % grid.x), 0, 0};
    run_block(random);
  }
  return failure_;
}

bool BlockRunner::pick(Random& random, uint32_t& warp) const {
  if (warps_[warp].ready && random.next() % 64) return true;
  const auto count = static_cast<uint32_t>(warps_.size()), start = random.below(count);
  for (uint32_t i = 0; i < count; ++i) {
    warp = (start + i) % count;
    if (warps_[warp].ready) return true;
  }
  return false;
}

void BlockRunner::run_block(Random& random) {
  const auto count = static_cast<uint32_t>(threads_.size());
  warps_.resize((count + kWarp - 1) / kWarp);
  for (Warp& warp : warps_) warp.ready = 0, warp.groups.clear();
  at_block_ = ended_ = 0;
  for (uint32_t i = 0; i < count; ++i) ready(i, State::kFresh);
  for (uint32_t warp = 0; failure_.reason.empty() && pick(random, warp);) {
    const uint32_t turn = random.next() % kWarp;
    const auto lane =
        (turn + static_cast<uint32_t>(std::countr_zero(std::rotr(warps_[warp].ready, static_cast<int>(turn))))) % kWarp;
    warps_[warp].ready &= ~(1u << lane);
    run_thread(warp * kWarp + lane);
  }
  if (failure_.reason.empty() && ended_ < count) failure_ = {cudaErrorLaunchFailure, stuck()};
  if (!failure_.reason.empty()) abandon();
}

void BlockRunner::ready(uint32_t thread, State state) {
  threads_[thread].state = state;
  warps_[thread / kWarp].ready |= 1u << thread % kWarp;
}

void BlockRunner::run_thread(uint32_t thread) {
  threadIdx = {thread, 0, 0};
  if (fibers_.resume(static_cast<int>(thread))) threads_[thread].state = State::kEnded, ++ended_;
}

// Threads that have begun and not ended are unwound, so that their fibers can begin anew.
void BlockRunner::abandon() {
  abandoning_ = true;
  for (uint32_t i = 0; i < threads_.size(); ++i)
    if (threads_[i].state != State::kFresh && threads_[i].state != State::kEnded) run_thread(i);
  abandoning_ = false;
}

void BlockRunner::leave() {
  fibers_.leave();
  if (abandoning_) throw Abandoned();
}

void BlockRunner::fail(cudaError_t error, const std::string& reason) {
  failure_ = {error, reason + format(" (thread %u of block %u)", threadIdx.x, blockIdx.x)};
  throw Abandoned();
}

uint64_t BlockRunner::meet(Meeting kind, uint32_t mask, uint64_t value, uint32_t source) {
  const uint32_t me = threadIdx.x, first = me - me % kWarp, lane = me % kWarp;
  const auto lanes = std::min<uint32_t>(kWarp, static_cast<uint32_t>(threads_.size()) - first);
  if (!(mask >> lane & 1))
    fail(cudaErrorLaunchFailure, format("%s with the mask %08x, which lacks the caller", name_of(kind), mask));
  if (lanes < kWarp && mask >> lanes)
    fail(cudaErrorLaunchFailure, format("%s with the mask %08x in a warp of %u threads", name_of(kind), mask, lanes));
  if (kind == Meeting::kShuffle && (source >= kWarp || !(mask >> source & 1)))
    fail(cudaErrorLaunchFailure, format("a shuffle with the mask %08x that reads lane %u", mask, source));
  Thread& thread = threads_[me];
  thread.value = value, thread.source = source, thread.state = State::kWaits;
  auto& groups = warps_[me / kWarp].groups;
  auto group =
      std::find_if(groups.begin(), groups.end(), [&](const Group& g) { return g.kind == kind && g.mask == mask; });
  if (group == groups.end()) group = groups.insert(groups.end(), {kind, mask, 0});
  group->arrived |= 1u << lane;
  if (group->arrived == mask) {
    groups.erase(group);
    complete(kind, mask, first);
  } else {
    leave();
  }
  return thread.result;
}

// All lanes of the mask have come; the one that runs goes on, as any of them might.
void BlockRunner::complete(Meeting kind, uint32_t mask, uint32_t first) {
  uint64_t ballot = 0;
  for (uint32_t rest = kind == Meeting::kBallot ? mask : 0; rest; rest &= rest - 1) {
    const auto lane = static_cast<uint32_t>(std::countr_zero(rest));
    ballot |= uint64_t{threads_[first + lane].value != 0} << lane;
  }
  for (uint32_t rest = mask; rest; rest &= rest - 1) {
    const uint32_t i = first + static_cast<uint32_t>(std::countr_zero(rest));
    threads_[i].result = kind == Meeting::kShuffle ? threads_[first + threads_[i].source].value : ballot;
    if (i != threadIdx.x) ready(i, State::kReady);
  }
  threads_[threadIdx.x].state = State::kReady;
}

void BlockRunner::meet_block() {
  threads_[threadIdx.x].state = State::kWaits;
  if (++at_block_ < threads_.size()) {
    leave();
    return;
  }
  at_block_ = 0;
  for (uint32_t i = 0; i < threads_.size(); ++i)
    if (i != threadIdx.x) ready(i, State::kReady);
  threads_[threadIdx.x].state = State::kReady;
}

// Nothing can run, and not all have ended: who waits for whom.
std::string BlockRunner::stuck() const {
  std::string out = format("block %u: of %zu threads %u wait at __syncthreads and %u have ended", blockIdx.x,
                           threads_.size(), at_block_, ended_);
  for (size_t i = 0; i < warps_.size(); ++i)
    for (const Group& group : warps_[i].groups)
      out += format("; lanes %08x of warp %zu wait in %s with the mask %08x", group.arrived, i, name_of(group.kind),
                    group.mask);
  return out + ": some that they wait for never come";
}

}  // namespace cuda_emulator
