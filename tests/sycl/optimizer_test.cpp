// Claims: optimizers refuse queues that they cannot be ordered on; device memory can be a caller's.
#include <gtest/gtest.h>

#include <cstdio>
#include <map>
#include <memory>
#include <string>

#include "lowtide/optimizer.h"
#include "sycl_support.h"

namespace lowtide::testing {
namespace {

OptimizerOptions on(const std::string& backend, const std::string& device, void* stream) {
  OptimizerOptions options;
  options.backend = backend;
  options.device = device;
  options.stream = stream;
  return options;
}

TEST(SyclOptimizer, QueuesOfElsewhereAreRefused) {
  LT_NEEDS_SYCL();
  const sycl::device device = SyclDevice::get().queue->get_device();
  sycl::queue queue = *SyclDevice::get().queue;
  sycl::queue elsewhere(sycl::context(device), device, sycl::property::queue::in_order());
  sycl::queue disorderly(device);
  auto* param = sycl::malloc_device<float>(1000, queue);
  queue.memset(param, 0, 4000).wait();
  int refused = 0;
  for (sycl::queue* stream : {&elsewhere, &disorderly}) {
    Optimizer optimizer(on("sycl", "cpu", &queue));
    optimizer.add_group({});
    optimizer.add_param(0, {param, DType::kF32, {10, 100}, {}});
    const Gradient gradient{param, DType::kF32, nullptr};
    EXPECT_TRUE(optimizer.step({&gradient, 1}, {.stream = &queue}).applied);
    refusal([&] { optimizer.step({&gradient, 1}, {.stream = stream}); });
    EXPECT_TRUE(optimizer.step({&gradient, 1}).applied);
    EXPECT_EQ(optimizer.steps(0), 2);
    ++refused;
  }
  // Another context at construction: its memory is that context's.
  Optimizer there(on("sycl", "", &elsewhere));
  refusal([] { Optimizer(on("tpu", "", nullptr)); });
  refusal([&] { Optimizer(on("cpu", "", &queue)); });
  OptimizerOptions with_disk = on("sycl", "", nullptr);
  with_disk.memory = {1 << 20, "/tmp"}, with_disk.memory.automatic = true;
  refusal([&] { Optimizer refused{with_disk}; });
  queue.wait();
  sycl::free(param, queue);
  std::printf("queues refused: %d/2\n", refused);
}

// Memory of a caller's cache goes back there, and memory from before to the driver.
TEST(SyclOptimizer, DeviceMemoryComesFromACaller) {
  LT_NEEDS_SYCL();
  struct Lender {
    sycl::queue& queue;
    int64_t left;
    std::map<void*, int64_t> live;
  } lender{*SyclDevice::get().queue, 1 << 20, {}};
  const Device::Allocator from{&lender,
                               [](void* context, int64_t bytes) -> void* {
                                 auto& self = *static_cast<Lender*>(context);
                                 if (bytes > self.left) return nullptr;
                                 void* const memory = sycl::malloc_device(static_cast<size_t>(bytes), self.queue);
                                 self.live[memory] = bytes, self.left -= bytes;
                                 return memory;
                               },
                               [](void* context, void* memory) {
                                 auto& self = *static_cast<Lender*>(context);
                                 self.left += self.live.at(memory);
                                 self.live.erase(memory);
                                 sycl::free(memory, self.queue);
                               }};
  const std::unique_ptr<Backend> backend = open_backend("sycl", "cpu");
  Device& device = *backend->device();
  void* const before = device.allocate(MemoryKind::kDevice, 1000);
  device.use_allocator(from);
  void* const there = device.allocate(MemoryKind::kDevice, 1 << 19);
  void* const pinned = device.allocate(MemoryKind::kPinned, 1000);
  EXPECT_EQ(lender.live.size(), 1u);
  const std::string message = refusal([&] { device.allocate(MemoryKind::kDevice, 1 << 20); }, ErrorKind::kOutOfMemory);
  EXPECT_NE(message.find("from the caller's allocator"), std::string::npos) << message;
  device.use_allocator({});
  for (void* memory : {before, there, pinned}) device.free(memory);
  EXPECT_TRUE(lender.live.empty());
}

}  // namespace
}  // namespace lowtide::testing
