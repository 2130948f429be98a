// Contexts: which calls make one, and where. CUDA, Runtime API, "Interactions with the CUDA Driver API": the first call
// that needs a context makes the primary one of the thread's device; cudaSetDevice (from CUDA 12 on) makes one at once.
// Driver API, "Context Management": a stack for each thread, whose top the runtime uses.
#include <cudaTypedefs.h>
#include <sys/wait.h>
#include <unistd.h>

#include <thread>

#include "emulator_support.h"

namespace cuda_emulator {
namespace {

class Contexts : public Emulated {
 protected:
  void SetUp() override {
    first.devices = 3;
    Emulated::SetUp();
  }
};

template <class Function>
Function entry(const char* name, unsigned version = 12000) {
  void* found = nullptr;
  cudaDriverEntryPointQueryResult status;
  ok(cudaGetDriverEntryPointByVersion(name, &found, version, cudaEnableDefault, &status));
  EXPECT_EQ(found != nullptr, status == cudaDriverEntryPointSuccess);
  return reinterpret_cast<Function>(found);
}

std::vector<int> devices_with_contexts() {
  std::vector<int> out;
  for (int device = 0; device < settings().devices; ++device)
    if (has_context(device)) out.push_back(device);
  return out;
}

TEST_F(Contexts, AreMadeByTheFirstCallThatNeedsOne) {
  int value = 0;
  cudaDeviceProp properties;
  ok(cudaGetDeviceCount(&value)), ok(cudaGetDevice(&value)), ok(cudaGetDeviceProperties(&properties, 1));
  ok(cudaDeviceGetAttribute(&value, cudaDevAttrMultiProcessorCount, 2));
  EXPECT_EQ(devices_with_contexts(), std::vector<int>{});
  std::thread([] {
    ok(cudaSetDevice(2));
    EXPECT_EQ(devices_with_contexts(), std::vector<int>{2});
  }).join();
  void* memory = nullptr;
  ok(cudaMalloc(&memory, 4)), ok(cudaFree(memory));
  EXPECT_EQ(devices_with_contexts(), (std::vector<int>{0, 2}));
}

TEST_F(Contexts, AreAStackThatTheRuntimeUses) {
  const auto get = entry<PFN_cuDeviceGet_v2000>("cuDeviceGet");
  const auto retain = entry<PFN_cuDevicePrimaryCtxRetain_v7000>("cuDevicePrimaryCtxRetain");
  const auto push = entry<PFN_cuCtxPushCurrent_v4000>("cuCtxPushCurrent");
  const auto pop = entry<PFN_cuCtxPopCurrent_v4000>("cuCtxPopCurrent");
  const auto current = entry<PFN_cuCtxGetDevice_v2000>("cuCtxGetDevice");
  EXPECT_EQ(entry<void*>("cuCtxPushCurrent", 3000), nullptr);
  EXPECT_EQ(entry<void*>("cuNoSuchFunction"), nullptr);

  CUdevice second = -1, device = -1;
  CUcontext context = nullptr, popped = nullptr;
  EXPECT_EQ(get(&second, 1), CUDA_SUCCESS);
  EXPECT_NE(get(&device, 3), CUDA_SUCCESS);
  EXPECT_EQ(current(&device), CUDA_ERROR_INVALID_CONTEXT);
  EXPECT_EQ(pop(&popped), CUDA_ERROR_INVALID_CONTEXT);
  EXPECT_EQ(cudaGetLastError(), cudaSuccess) << "the driver's errors are not the runtime's last one";
  EXPECT_EQ(retain(&context, second), CUDA_SUCCESS);
  EXPECT_EQ(devices_with_contexts(), std::vector<int>{1});
  EXPECT_EQ(push(context), CUDA_SUCCESS);
  EXPECT_EQ(current(&device), CUDA_SUCCESS);
  EXPECT_EQ(device, second);
  const cudaStream_t stream = make_stream();
  ok(cudaStreamGetDevice(stream, &device));
  EXPECT_EQ(device, 1);
  ok(cudaStreamDestroy(stream));
  EXPECT_EQ(pop(&popped), CUDA_SUCCESS);
  EXPECT_EQ(popped, context);
  ok(cudaGetDevice(&device));
  EXPECT_EQ(device, 0) << "chosen by cudaSetDevice, or by nobody";
  EXPECT_EQ(devices_with_contexts(), std::vector<int>{1});
}

// CUDA, Driver API, CUDA_ERROR_NOT_INITIALIZED; a forked child has the parent's memory, not its driver.
TEST_F(Contexts, AreNotInherited) {
  const auto answers_in_child = [] {
    const pid_t child = fork();
    if (child == 0) {
      int count = 0, driver = 0;
      void* memory = nullptr;
      const bool refused = cudaGetDeviceCount(&count) == cudaErrorInitializationError &&
                           cudaMalloc(&memory, 4) == cudaErrorInitializationError;
      _exit(refused ? 3 : cudaDriverGetVersion(&driver) == cudaSuccess ? 0 : 4);
    }
    int status = -1;
    EXPECT_EQ(waitpid(child, &status, 0), child);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  };
  EXPECT_EQ(answers_in_child(), 0) << "the parent has not used CUDA";
  void* memory = nullptr;
  ok(cudaMalloc(&memory, 4)), ok(cudaFree(memory));
  EXPECT_EQ(answers_in_child(), 3);
}

// CUDA, Runtime API, cudaErrorCudartUnloading: calls after the driver has gone, when the process ends.
TEST_F(Contexts, EndWithTheProcess) {
  void* memory = nullptr;
  ok(cudaMalloc(&memory, 4)), ok(cudaFree(memory));
  unload();
  int device = -1;
  EXPECT_EQ(cudaMalloc(&memory, 4), cudaErrorCudartUnloading);
  EXPECT_EQ(cudaSetDevice(0), cudaErrorCudartUnloading);
  EXPECT_EQ(cudaGetDeviceCount(&device), cudaErrorCudartUnloading);
}

}  // namespace
}  // namespace cuda_emulator
