// Counts of the signs of values in bit planes, in memory of any backend: the core of SignAccumulator.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "backend/backend.h"
#include "sign/sign_memory.h"

namespace lowtide::sign {

// The number of signs counted at a time, low enough for their new counts to stay in a CPU's cache.
inline constexpr int64_t kCountWindow = 1 << 20;
static_assert(kCountWindow % kSignAlignment == 0);

// The memory that additions need in addition to the counters, and the word that records whether a value was not finite.
// Successive additions may share one CountRoom.
class CountRoom {
 public:
  // Makes room for `count` values and `most` additions. Throws like SignMemory.
  CountRoom(std::shared_ptr<Backend> backend, int64_t count, int most);

  // Waits for the additions. Returns true if a value was not finite since construction or the last call.
  bool take_nonfinite(void* stream);

 private:
  friend class SignCounts;
  int64_t window_;  // bytes of signs counted at a time
  int planes_;
  SignMemory memory_;
};

class SignCounts {
 public:
  // Counts 0 to 2^60 values in 1 to 65,535 additions. Shares ownership of the backend. Throws kInvalidArgument, and
  // like SignMemory.
  SignCounts(std::shared_ptr<Backend> backend, int64_t count, int most);

  int64_t count() const { return count_; }
  int added() const { return added_; }  // additions since clear()
  int most() const { return most_; }
  int planes() const { return planes_; }
  int64_t bytes() const { return planes_ * plane_bytes_; }
  // Returns bit j of every counter, in the backend's memory.
  const std::byte* plane(int j) const { return memory_.there() + j * plane_bytes_; }
  // Returns how many votes a sign in each plane has: 1, 2, 4, ...
  std::vector<uint32_t> plane_weights() const;

  // Adds the signs of values[count], which are contiguous in the backend's memory. A value x >= 0 counts as +, but
  // exact zeros alternate between + and - from one addition to the next, also across clear(). The work is queued on
  // `stream`. Throws kInvalidArgument after `most` additions.
  void add(const void* values, DType dtype, CountRoom& room, int threads, void* stream);
  void clear(void* stream);
  // Writes how often each value was + to float32 out[count] in the backend's memory. The work is queued on `stream`.
  void read(float* out, int threads, void* stream);

 private:
  void add_window(const void* values, DType dtype, int64_t first, int64_t signs, CountRoom& room, int threads,
                  void* stream);

  std::shared_ptr<Backend> backend_;
  int64_t count_;
  int most_, planes_, added_ = 0;
  bool zero_is_plus_ = true;  // in the next addition
  int64_t plane_bytes_;
  SignMemory memory_;
};

// Returns, for each possible number of +, the mean of `added` signs: (number of + minus number of -) / added, rounded
// to the nearest float32, or 0 without additions.
std::vector<float> means_of(int added);

}  // namespace lowtide::sign
