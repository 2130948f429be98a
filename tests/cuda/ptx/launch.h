// A launch: what a grid runs with, and what a block shares.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "program.h"

namespace ptx {

// Which value an approximate instruction gives, among all that the manual allows.
enum class Choice { kLowest, kHighest, kNearest, kRandom };

struct Policy {
  Choice choice = Choice::kNearest;
  uint64_t seed = 1;
  bool split = false;            // lanes of a warp run apart, in a random order, until they meet
  uint32_t blocks = UINT32_MAX;  // of a grid, the first so many are run
};

struct Failure : std::runtime_error {
  Failure(const std::string& what, bool of_address) : std::runtime_error(what), is_of_address(of_address) {}
  bool is_of_address;
};

struct Range {
  uint64_t begin = 0, end = 0;
};
// The memory that a launch may use around this address; empty: none.
using Find = std::function<Range(uint64_t address)>;

// splitmix64.
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}
  uint64_t next() {
    uint64_t z = state_ += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
  }
  uint32_t below(uint64_t n) { return static_cast<uint32_t>(next() % n); }

 private:
  uint64_t state_;
};

// Shared memory of a block, poisoned where nothing is written yet. It finds reads of that, accesses beyond a variable,
// and accesses of two threads, one of them a write, without a barrier between.
class SharedMemory {
 public:
  void begin(const Program& program);
  void barrier() { ++epoch_; }
  std::byte* read(Warp& warp, uint32_t lane, uint64_t address, uint32_t bytes);
  std::byte* write(Warp& warp, uint32_t lane, uint64_t address, uint32_t bytes);

 private:
  struct Access {
    uint32_t epoch = 0, write_clock = 0, read_clock = 0, readers = 0;
    uint16_t writer = 0, reading_warp = 0;
  };
  enum : uint8_t { kNone, kUnwritten, kWritten };
  std::byte* find(Warp& warp, uint32_t lane, uint64_t address, uint32_t bytes);
  Access& renew(size_t at);
  static bool are_known(const Warp& warp, uint32_t lane, const Access& access);
  void check_write(Warp& warp, uint32_t lane, const Access& access, size_t at, const char* what) const;

  std::vector<std::byte> bytes_;
  std::vector<uint8_t> states_;
  std::vector<Access> accesses_;
  uint32_t epoch_ = 0;
};

// The warps of a launch have this in common.
struct Team {
  const Program& program;
  const std::vector<std::byte>& parameters;
  uint32_t grid, block_threads;
  const Find& find;
  const Policy& policy;
  Random random;
  SharedMemory& shared;
  uint32_t block = 0;
  std::vector<Range> ranges;  // found so far
  uint64_t steps = 0;         // instructions of warps
  uint64_t lane_steps = 0;

  // The range that holds [address, address + bytes); empty: there is none.
  Range range(uint64_t address, uint64_t bytes);
};

struct Work {
  uint64_t warp_instructions = 0, thread_instructions = 0;
};

// Runs all blocks, unless the policy names fewer. Throws Failure.
Work run_grid(const Program& program, const std::vector<std::byte>& parameters, uint32_t grid, uint32_t threads,
              const Find& find, const Policy& policy);

}  // namespace ptx
