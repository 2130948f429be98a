// Contexts: each takes some hundred MB of its device, so none is made where nobody works, and the caller's stays
// current. CUDA, Runtime API, "Interactions with the CUDA Driver API" and cudaSetDevice (from CUDA 12 on it makes a
// context); Driver API, "Context Management".
#include <cudaTypedefs.h>

#include <thread>

#include "backend/cuda/host/device_info.h"
#include "backend/plugin_backend.h"
#include "host_support.h"

extern "C" const lowtide::border::Exports* lt_cuda_plugin();

namespace lowtide::cuda_host {
namespace {

class CudaContexts : public Emulated {
 protected:
  void SetUp() override { restart({.devices = 3}); }
};

template <class Function>
Function entry(const char* name) {
  void* found = nullptr;
  EXPECT_EQ(cudaGetDriverEntryPointByVersion(name, &found, 12000, cudaEnableDefault), cudaSuccess);
  return reinterpret_cast<Function>(found);
}

// The ordinal of the device of the thread's current context; -1: there is none.
int current_device() {
  CUdevice current = -1, device = -1;
  const CUresult result = entry<PFN_cuCtxGetDevice_v2000>("cuCtxGetDevice")(&current);
  EXPECT_TRUE(result == CUDA_SUCCESS || result == CUDA_ERROR_INVALID_CONTEXT);
  int ordinal = result == CUDA_SUCCESS ? 0 : -1;
  while (ordinal >= 0 && device != current)
    if (entry<PFN_cuDeviceGet_v2000>("cuDeviceGet")(&device, ordinal++) != CUDA_SUCCESS) return -2;
  return ordinal < 0 ? -1 : ordinal - 1;
}

void use_all(Backend& backend) {
  Device& device = *backend.device();
  const cudaStream_t stream = own_stream(backend);
  Model model(backend, {50, 60}, stream);
  DeviceBytes pinned(device, MemoryKind::kPinned, 1 << 16), shared(device, MemoryKind::kShared, 1 << 16);
  const auto guard = backend.queue_guard(model.items(), stream);
  backend.step(model.items(1, guard.get()), 1, false, stream);
  EXPECT_EQ(guard->first(), -1);
  device.prefetch(stream, shared.data(), shared.bytes());
  EXPECT_EQ(model.steps(), (std::vector<int>{1, 1}));
  EXPECT_GT(device.limits().free, 0);
  refusal([&] { device.allocate(MemoryKind::kDevice, int64_t{1} << 40); }, ErrorKind::kOutOfMemory);
}

TEST_F(CudaContexts, NoneOnADeviceThatNobodyUses) {
  {
    auto backend = make_backend(":1", nullptr);
    use_all(*backend);
    std::thread([&] { use_all(*backend); }).join();
  }
  EXPECT_FALSE(cuda_emulator::has_context(0));
  EXPECT_TRUE(cuda_emulator::has_context(1));
  EXPECT_FALSE(cuda_emulator::has_context(2));
}

TEST_F(CudaContexts, AListOfDevicesMakesNone) {
  std::string text;
  EXPECT_EQ(list_devices(*lt_cuda_plugin(), &text), 3);
  expect_words(text, {"; 0: ", "; 2: ", "compute capability 9.0", "kernels of sm_90", "the same bits"});
  for (int device = 0; device < 3; ++device) EXPECT_FALSE(cuda_emulator::has_context(device)) << device;
}

TEST_F(CudaContexts, TheCallersIsKept) {
  auto backend = make_backend(":1", nullptr);
  EXPECT_EQ(current_device(), -1) << "there was none";
  use_all(*backend);
  EXPECT_EQ(current_device(), -1);
  ASSERT_EQ(cudaSetDevice(2), cudaSuccess);
  use_all(*backend);
  EXPECT_EQ(current_device(), 2);
  int device = -1;
  EXPECT_EQ(cudaGetDevice(&device), cudaSuccess);
  EXPECT_EQ(device, 2);
  // A caller's context of the same device is not replaced.
  cuda_emulator::fail("cuCtxPushCurrent", {0, 1, cudaErrorMemoryAllocation});
  ASSERT_EQ(cudaSetDevice(1), cudaSuccess);
  backend->device()->limits();
  cuda_emulator::forget_failures();
  ASSERT_EQ(cudaSetDevice(2), cudaSuccess);
  cuda_emulator::fail("cudaThreadExchangeStreamCaptureMode", {0, 1, cudaErrorUnknown});
  refusal([&] { backend->device()->limits(); }, ErrorKind::kInternal);
  EXPECT_EQ(current_device(), 2);
}

// Each device has a flag of its own that it is lost.
TEST_F(CudaContexts, DevicesBeyondTheFlagsAreRefused) {
  restart({.devices = kMostDevices + 1, .memory = 1 << 20});
  make_backend(format(":%d", kMostDevices - 1).c_str(), nullptr);
  expect_words(refusal([] { make_backend(format(":%d", kMostDevices).c_str(), nullptr); }, ErrorKind::kUnsupported),
               {"got CUDA device 64", "the first 64", "CUDA_VISIBLE_DEVICES"});
}

TEST_F(CudaContexts, ARefusedContextIsNamed) {
  cuda_emulator::fail("cuDevicePrimaryCtxRetain", {0, 1, cudaErrorMemoryAllocation});
  expect_words(refusal([] { make_backend(":1", nullptr); }, ErrorKind::kOutOfMemory),
               {"opening a device", "cudaErrorMemoryAllocation"});
  auto backend = make_backend(":1", nullptr);
  cuda_emulator::fail("cuCtxPushCurrent", {0, 1, cudaErrorMemoryAllocation});
  refusal([&] { backend->device()->limits(); }, ErrorKind::kOutOfMemory);
  use_all(*backend);
}

}  // namespace
}  // namespace lowtide::cuda_host
