// Counts what a store has read from its scratch file and written to it.
#pragma once

#include <chrono>
#include <cstdint>

namespace lowtide {

struct Traffic {
  int64_t read_bytes = 0, written_bytes = 0;
  double waited_seconds = 0;  // that steps stood still for reads and writes
};

// Adds the seconds of its life.
class Stopwatch {
 public:
  explicit Stopwatch(double& seconds) : seconds_(seconds) {}
  ~Stopwatch() { seconds_ += std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count(); }
  Stopwatch(const Stopwatch&) = delete;
  Stopwatch& operator=(const Stopwatch&) = delete;

 private:
  double& seconds_;
  const std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

}  // namespace lowtide
