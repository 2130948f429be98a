// Memory: access out of reach crashes, requests that do not fit are refused, and misuse is reported.
#include <cstdio>

#include "emulator_support.h"

namespace cuda_emulator {
namespace {

class Memory : public Emulated {};

TEST_F(Memory, OfADeviceIsOutOfTheHostsReach) {
  auto* memory = on_device<volatile char>(100);
  EXPECT_DEATH(memory[0] = 1, "");
  char out = 0;
  ok(cudaMemcpyAsync(&out, const_cast<char*>(memory), 1, cudaMemcpyDefault, nullptr));
  EXPECT_EQ(static_cast<unsigned char>(out), 0xc5);
  EXPECT_DEATH(memory[0] = 1, "");
  ok(cudaFree(const_cast<char*>(memory)));
  EXPECT_DEATH(memory[0] = 1, "");
}

TEST_F(Memory, IsLimited) {
  Settings small = settings();
  small.memory = 1 << 20, small.pin_limit = 1000;
  change(small);
  void *first = nullptr, *second = nullptr;
  ok(cudaMalloc(&first, 1000000));
  EXPECT_EQ(cudaMalloc(&second, 50000), cudaErrorMemoryAllocation);
  size_t free = 0, total = 0;
  ok(cudaMemGetInfo(&free, &total));
  EXPECT_EQ(free, total - 1000000);
  ok(cudaFree(first));
  ok(cudaMalloc(&second, 50000)), ok(cudaFree(second));
  std::vector<char> host(4000);
  EXPECT_EQ(cudaHostRegister(host.data(), 1001, 0), cudaErrorMemoryAllocation);
  ok(cudaHostRegister(host.data(), 500, 0));
  ok(cudaHostRegister(host.data() + 500, 500, 0));
  EXPECT_EQ(cudaHostRegister(host.data() + 999, 1, 0), cudaErrorHostMemoryAlreadyRegistered);
  EXPECT_EQ(cudaHostUnregister(host.data() + 1), cudaErrorHostMemoryNotRegistered);
  // No copy lies in two registrations, or beyond one.
  void* there = nullptr;
  ok(cudaMalloc(&there, 1000));
  EXPECT_EQ(cudaMemcpyAsync(there, host.data(), 501, cudaMemcpyDefault, nullptr), cudaErrorInvalidValue);
  EXPECT_EQ(cudaMemcpyAsync(there, host.data() + 999, 2, cudaMemcpyDefault, nullptr), cudaErrorInvalidValue);
  EXPECT_EQ(cudaMemcpyAsync(there, host.data() + 1000, 1001, cudaMemcpyDefault, nullptr), cudaErrorInvalidValue);
  EXPECT_EQ(cudaMemcpyAsync(there, host.data(), 500, cudaMemcpyDeviceToHost, nullptr), cudaErrorInvalidValue);
  ok(cudaMemcpyAsync(there, host.data(), 500, cudaMemcpyHostToDevice, nullptr));
  cudaPointerAttributes what;
  ok(cudaPointerGetAttributes(&what, host.data() + 10));
  EXPECT_EQ(what.type, cudaMemoryTypeHost);
  ok(cudaPointerGetAttributes(&what, host.data() + 1000));
  EXPECT_EQ(what.type, cudaMemoryTypeUnregistered);
  ok(cudaPointerGetAttributes(&what, static_cast<char*>(there) + 999));
  EXPECT_EQ(what.type, cudaMemoryTypeDevice);
  ok(cudaFree(there));
  ok(cudaHostUnregister(host.data())), ok(cudaHostUnregister(host.data() + 500));
}

__global__ void write(char* memory, int at) { memory[at] = 1; }

TEST_F(Memory, MisuseIsTold) {
  char* memory = on_device<char>(1000);
#ifndef __SANITIZE_ADDRESS__  // which tells it itself
  ok(launch(nullptr, 1, 1, write, memory, 1000));
  ok(cudaFree(memory));
  EXPECT_EQ(take_misuses().size(), 1u) << "written beyond the end";
#else
  ok(cudaFree(memory));
#endif
  EXPECT_EQ(cudaFree(memory), cudaErrorInvalidValue);
  EXPECT_EQ(take_misuses().size(), 1u) << "freed twice";
  std::vector<char> host(100);
  memory = on_device<char>(100);
  ok(cudaHostRegister(host.data(), 100, 0));
  ok(cudaMemcpyAsync(memory, host.data(), 100, cudaMemcpyDefault, nullptr));
  ok(cudaHostUnregister(host.data()));
  EXPECT_EQ(take_misuses().size(), 1u) << "unregistered while a copy is queued";
  ok(cudaFree(memory));
}

TEST_F(Memory, CallsFailOnRequestAndLostDevicesStayLost) {
  void* memory = nullptr;
  fail("cudaMalloc", {2, 1, cudaErrorMemoryAllocation});
  for (const cudaError_t wanted : {cudaSuccess, cudaSuccess, cudaErrorMemoryAllocation, cudaSuccess})
    EXPECT_EQ(cudaMalloc(&memory, 10), wanted);
  EXPECT_EQ(cudaGetLastError(), cudaErrorMemoryAllocation);
  EXPECT_EQ(cudaGetLastError(), cudaSuccess);
  EXPECT_EQ(held().allocations, 3);
  fail("cudaMemcpyAsync", {0, 1, cudaErrorIllegalAddress});
  char byte = 0;
  EXPECT_EQ(cudaMemcpyAsync(memory, &byte, 1, cudaMemcpyDefault, nullptr), cudaErrorIllegalAddress);
  EXPECT_EQ(cudaMalloc(&memory, 10), cudaErrorIllegalAddress);
  EXPECT_EQ(cudaStreamSynchronize(nullptr), cudaErrorIllegalAddress);
  EXPECT_EQ(cudaGetLastError(), cudaErrorIllegalAddress);
  EXPECT_EQ(cudaGetLastError(), cudaErrorIllegalAddress);
}

TEST_F(Memory, WithoutADriverAllFailsAndNothingCrashes) {
  Settings none;
  none.driver = 0;
  reset(none);
  int count = -1, version = -1;
  EXPECT_EQ(cudaGetDeviceCount(&count), cudaErrorInsufficientDriver);
  ok(cudaDriverGetVersion(&version));
  EXPECT_EQ(version, 0);
  void* memory = nullptr;
  EXPECT_EQ(cudaMalloc(&memory, 1), cudaErrorInsufficientDriver);
  none.driver = CUDART_VERSION, none.devices = 0;
  reset(none);
  EXPECT_EQ(cudaGetDeviceCount(&count), cudaErrorNoDevice);
  EXPECT_EQ(cudaMalloc(&memory, 1), cudaErrorNoDevice);
  EXPECT_EQ(cudaGetLastError(), cudaErrorNoDevice);
}

}  // namespace
}  // namespace cuda_emulator
