// A small seeded generator: orders of threads, blocks and streams.
#pragma once

#include <cstdint>

namespace cuda_emulator {

class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed * 0x9e3779b97f4a7c15u + 0x632be59bd9b4e019u) {}
  uint32_t next() {
    state_ ^= state_ << 13, state_ ^= state_ >> 7, state_ ^= state_ << 17;
    return static_cast<uint32_t>(state_ >> 32);
  }
  uint32_t below(uint32_t n) { return static_cast<uint32_t>(uint64_t{next()} * n >> 32); }
  bool chance(double p) { return next() < p * 0x1p32; }

 private:
  uint64_t state_;
};

}  // namespace cuda_emulator
