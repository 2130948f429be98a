// The translation of CUDA's errors, and the use of a lost device.
#include <cstdlib>

#include "host_support.h"

namespace lowtide::cuda_host {
namespace {

class CudaErrors : public Emulated {};

TEST_F(CudaErrors, OfEachKind) {
  EXPECT_EQ(kind_of(cudaErrorMemoryAllocation), ErrorKind::kOutOfMemory);
  EXPECT_EQ(kind_of(cudaErrorInvalidValue), ErrorKind::kInvalidArgument);
  EXPECT_EQ(kind_of(cudaErrorStreamCaptureImplicit), ErrorKind::kInvalidArgument);
  EXPECT_EQ(kind_of(cudaErrorInsufficientDriver), ErrorKind::kUnsupported);
  EXPECT_EQ(kind_of(cudaErrorNotSupported), ErrorKind::kUnsupported);
  for (const cudaError_t code : {cudaErrorIllegalAddress, cudaErrorLaunchFailure, cudaErrorMisalignedAddress,
                                 cudaErrorAssert, cudaErrorECCUncorrectable, cudaErrorContained,
                                 cudaErrorTensorMemoryLeak, cudaErrorExternalDevice, cudaErrorCudartUnloading})
    EXPECT_EQ(kind_of(code), ErrorKind::kDeviceLost);
  EXPECT_EQ(kind_of(cudaErrorUnknown), ErrorKind::kInternal);
  expect_words(words_of(cudaErrorInsufficientDriver), {"cudaErrorInsufficientDriver", "update", "580"});
}

TEST_F(CudaErrors, NoDriverAndNoDevice) {
  restart({.driver = 0});
  expect_words(refusal([] { make_backend("", nullptr); }, ErrorKind::kUnsupported), {"driver", "update"});
  restart({.devices = 0});
  expect_words(refusal([] { make_backend("", nullptr); }, ErrorKind::kUnsupported),
               {"cudaErrorNoDevice", "CUDA_VISIBLE_DEVICES"});
}

TEST_F(CudaErrors, DevicesByNumber) {
  restart({.devices = 2});
  EXPECT_STREQ(make_backend("fast:1", nullptr)->target(), "fast");
  expect_words(refusal([] { make_backend(":2", nullptr); }), {"device 2", "0 to 1"});
}

// After a launch that hurts the device, every call says that it is lost, at once; frees do nothing, and nor do they
// fail.
TEST_F(CudaErrors, ALostDeviceStaysLost) {
  for (const cudaError_t code :
       {cudaErrorIllegalAddress, cudaErrorLaunchFailure, cudaErrorECCUncorrectable, cudaErrorContained}) {
    restart({});
    auto backend = make_backend("", nullptr);
    Device& device = *backend->device();
    const cudaStream_t stream = own_stream(*backend);
    Model model(*backend, {100, 1000}, stream);
    const auto guard = backend->queue_guard(model.items(), stream);
    DeviceBytes pinned(device, MemoryKind::kPinned, 1 << 16);
    device.host_wait(device.record(stream));
    EXPECT_FALSE(device.is_lost());
    cuda_emulator::lose_device(0, code);
    const std::string first = refusal([&] { device.host_wait(device.record(stream)); }, ErrorKind::kDeviceLost);
    expect_words(first, {"device 0", cudaGetErrorName(code), "LOWTIDE_SYNC=1"});
    EXPECT_TRUE(device.is_lost());
    const int64_t calls = cuda_emulator::counters().calls;
    int refused = 0;
    const auto refuses = [&](auto&& act) {
      expect_words(refusal(act, ErrorKind::kDeviceLost), {"was lost", "another process"});
      ++refused;
    };
    std::byte byte{};
    refuses([&] { backend->step(model.items(), 1, false, stream); });
    refuses([&] { backend->queue_guard(model.items(), stream); });
    refuses([&] { backend->first_nonfinite(model.items(), 1, stream); });
    refuses([&] { backend->record_step(model.items(), false, stream); });
    refuses([&] { guard->first(); });
    refuses([&] { device.allocate(MemoryKind::kDevice, 1); });
    refuses([&] { device.allocate(MemoryKind::kPinned, 1); });
    refuses([&] { device.copy(stream, &byte, &byte, 1); });
    refuses([&] { device.fill(stream, model.items()[0].param, 0, 1, 1); });
    refuses([&] { device.record(stream); });
    refuses([&] { device.make_queue(); });
    refuses([&] { device.limits(); });
    refuses([&] { device.is_capturing(stream); });
    EXPECT_EQ(cuda_emulator::counters().calls, calls) << "CUDA was asked all the same";
    pinned.data()[0] = std::byte{1};  // what is on the host can still be read and saved
    std::printf("%s: %d calls refused\n", cudaGetErrorName(code), refused);
  }
}

TEST_F(CudaErrors, AFailedLaunchIsNamed) {
  auto backend = make_backend("", nullptr);
  const cudaStream_t stream = own_stream(*backend);
  Model model(*backend, {100}, stream);
  cuda_emulator::fail("cudaLaunchKernelEx", {0, 1, cudaErrorLaunchOutOfResources});
  expect_words(refusal([&] { backend->step(model.items(), 1, false, stream); }, ErrorKind::kInternal),
               {"step", "device 0", "cudaErrorLaunchOutOfResources"});
  EXPECT_EQ(cudaGetLastError(), cudaSuccess);
  backend->step(model.items(), 1, false, stream);
  EXPECT_EQ(model.steps(), std::vector<int>{1});
}

TEST_F(CudaErrors, SynchronousOnDemand) {
  setenv("LOWTIDE_SYNC", "1", 1);
  auto backend = make_backend("", nullptr);
  unsetenv("LOWTIDE_SYNC");
  const cudaStream_t stream = own_stream(*backend);
  Model model(*backend, {100}, stream);
  backend->step(model.items(), 1, false, stream);
  EXPECT_EQ(cuda_emulator::held().pending, 0);
}

// Any CUDA call fails once because there is no memory: an error, or none where there is another way; nothing is kept,
// and the next step is right.
TEST_F(CudaErrors, AnyCallMayFail) {
  int failures = 0;
  for (int64_t after = 0; after < 60; ++after) {
    restart({});
    const auto before = cuda_emulator::held();
    {
      auto backend = make_backend("", nullptr);
      const cudaStream_t stream = own_stream(*backend);
      Model model(*backend, {100, 300}, stream);
      cuda_emulator::fail("", {after, 1, cudaErrorMemoryAllocation});
      bool failed = false;
      int steps = 0;
      try {
        backend->step(model.items(), 1, false, stream);
        ++steps;
        EXPECT_EQ(backend->first_nonfinite(model.items(), 1, stream), -1);
        DeviceBytes more(*backend->device(), MemoryKind::kPinned, 5000);
        DeviceBytes shared(*backend->device(), MemoryKind::kShared, 5000);
      } catch (const Error& error) {
        EXPECT_EQ(error.kind(), ErrorKind::kOutOfMemory) << error.what();
        failed = true;
        ++failures;
      }
      cuda_emulator::forget_failures();
      if (failed) backend->step(model.items(), 1, false, stream);
      const std::vector<int> all = model.steps();
      // A step that failed may have been queued all the same.
      const int least = steps + failed, most = failed && steps == 0 ? 2 : least;
      for (const int count : all) EXPECT_TRUE(count == all[0] && count >= least && count <= most) << count;
    }
    const auto left = cuda_emulator::held();
    EXPECT_EQ(left.device_bytes, before.device_bytes);
    EXPECT_EQ(left.registered_bytes, before.registered_bytes);
    EXPECT_EQ(left.streams, before.streams);
    EXPECT_EQ(left.events, before.events);
  }
  EXPECT_GE(failures, 10);
  std::printf("60 calls refused, one at a time: %d errors\n", failures);
}

}  // namespace
}  // namespace lowtide::cuda_host
