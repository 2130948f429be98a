// One block of threads at a time: they run in a random order, and change where they meet.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "fibers.h"
#include "random.h"

namespace cuda_emulator {

class BlockRunner {
 public:
  // All blocks of a grid, in a random order.
  Failure run(const std::function<void()>& body, dim3 grid, dim3 block, Random& random);

  // Lets the running thread meet others.
  uint64_t meet(Meeting kind, uint32_t mask, uint64_t value, uint32_t source);
  void meet_block();
  [[noreturn]] void fail(cudaError_t error, const std::string& reason);

 private:
  struct Abandoned {};
  enum class State : uint8_t { kFresh, kReady, kWaits, kEnded };
  struct Thread {
    State state;
    uint32_t source;
    uint64_t value, result;
  };
  // Lanes of a mask that wait for the others.
  struct Group {
    Meeting kind;
    uint32_t mask, arrived;
  };
  struct Warp {
    uint32_t ready = 0;  // lanes
    std::vector<Group> groups;
  };
  void run_block(Random& random);
  void run_thread(uint32_t thread);
  // A warp with a lane that can run: mostly the one that runs, since its stacks are at hand.
  bool pick(Random& random, uint32_t& warp) const;
  void leave();
  void ready(uint32_t thread, State state);
  void complete(Meeting kind, uint32_t mask, uint32_t first);
  void abandon();
  std::string stuck() const;

  Fibers& fibers_ = Fibers::get();
  std::vector<Thread> threads_;
  std::vector<Warp> warps_;
  uint32_t at_block_ = 0, ended_ = 0;
  bool abandoning_ = false;
  Failure failure_;
};

}  // namespace cuda_emulator
