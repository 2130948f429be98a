// The end of the process. CUDA, Runtime API, cudaErrorCudartUnloading: objects of static life are destroyed after the
// driver has gone, and every call fails; it is no way back from there.
#include "host_support.h"
#include "pinned_pages.h"

namespace lowtide::cuda_host {
namespace {

class CudaTeardown : public Emulated {};

TEST_F(CudaTeardown, DestructorsOutliveTheDriver) {
  for (const bool registers : {true, false}) {
    restart({.registers = registers});
    auto backend = make_backend("", nullptr);
    Device& device = *backend->device();
    const cudaStream_t stream = own_stream(*backend);
    auto model = std::make_unique<Model>(*backend, std::vector<int64_t>{100, 1000}, stream);
    auto guard = backend->queue_guard(model->items(), stream);
    auto pinned = std::make_unique<DeviceBytes>(device, MemoryKind::kPinned, 1 << 20);
    auto shared = std::make_unique<DeviceBytes>(device, MemoryKind::kShared, 1 << 20);
    backend->step(model->items(1, guard.get()), 1, false, stream);
    const std::byte* const memory = pinned->data();
    cuda_emulator::unload();
    expect_words(refusal([&] { device.host_wait(device.record(stream)); }, ErrorKind::kDeviceLost),
                 {"cudaErrorCudartUnloading"});
    EXPECT_TRUE(device.is_lost());
    pinned.reset(), shared.reset(), guard.reset(), model.reset(), backend.reset();
    EXPECT_TRUE(is_mapped(memory, 1 << 20)) << "what was queued may still reach it";
  }
}

// Destructors come first: nobody has seen the driver go.
TEST_F(CudaTeardown, DestructorsFindTheDriverGone) {
  auto backend = make_backend("", nullptr);
  auto pinned = std::make_unique<DeviceBytes>(*backend->device(), MemoryKind::kPinned, 1 << 20);
  const std::byte* const memory = pinned->data();
  cuda_emulator::unload();
  pinned.reset();
  EXPECT_TRUE(is_mapped(memory, 1 << 20));
  backend.reset();
}

}  // namespace
}  // namespace lowtide::cuda_host
