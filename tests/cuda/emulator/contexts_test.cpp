// Contexts: which calls make one, and where. CUDA, Runtime API, "Interactions with the CUDA Driver API": the first call
// that needs a context makes the primary one of the thread's device; cudaSetDevice (from CUDA 12 on) makes one at once.
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

}  // namespace
}  // namespace cuda_emulator
