// For the tests of the emulator: a machine of its own for each test, and short launches.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "cuda_emulator.h"

namespace cuda_emulator {

inline constexpr unsigned kAll = 0xffffffffu;

// Every test begins with a machine that has nothing, and ends with one on which nothing was misused.
class Emulated : public ::testing::Test {
 protected:
  void SetUp() override { reset(first); }
  void TearDown() override {
    check_edges();
    const auto found = take_misuses();
    EXPECT_TRUE(found.empty()) << found[0];
    reset({});
  }
  Settings first;
};

inline void ok(cudaError_t error) { ASSERT_EQ(error, cudaSuccess) << cudaGetErrorName(error); }

template <class... Parameters, class... Arguments>
cudaError_t launch(cudaStream_t stream, unsigned blocks, unsigned threads, void (*kernel)(Parameters...),
                   Arguments... arguments) {
  const cudaLaunchConfig_t config{dim3(blocks), dim3(threads), 0, stream, nullptr, 0};
  return cudaLaunchKernelEx(&config, kernel, arguments...);
}

inline cudaStream_t make_stream(unsigned flags = cudaStreamNonBlocking) {
  cudaStream_t stream = nullptr;
  EXPECT_EQ(cudaStreamCreateWithFlags(&stream, flags), cudaSuccess);
  return stream;
}

inline cudaEvent_t make_event() {
  cudaEvent_t event = nullptr;
  EXPECT_EQ(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), cudaSuccess);
  return event;
}

template <class T>
T* on_device(size_t count) {
  void* memory = nullptr;
  EXPECT_EQ(cudaMalloc(&memory, count * sizeof(T)), cudaSuccess);
  return static_cast<T*>(memory);
}

// Host memory that is registered as long as this lives.
template <class T>
class Pinned {
 public:
  explicit Pinned(std::vector<T> values) : values_(std::move(values)) {
    EXPECT_EQ(cudaHostRegister(values_.data(), values_.size() * sizeof(T), cudaHostRegisterDefault), cudaSuccess);
  }
  ~Pinned() { EXPECT_EQ(cudaHostUnregister(values_.data()), cudaSuccess); }
  T* data() { return values_.data(); }
  T& operator[](size_t i) { return values_[i]; }

 private:
  std::vector<T> values_;
};

// Waits for all of the stream.
template <class T>
std::vector<T> fetch(const T* memory, size_t count, cudaStream_t stream) {
  std::vector<T> out(count);
  EXPECT_EQ(cudaMemcpyAsync(out.data(), memory, count * sizeof(T), cudaMemcpyDefault, stream), cudaSuccess);
  return out;
}

}  // namespace cuda_emulator
