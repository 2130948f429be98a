// Claims: optimizers whose parameters are in SYCL device memory give the bits of those in host memory under every
// budget of device memory; queues they cannot be ordered on are refused.
#include <gtest/gtest.h>

#include <cstdio>

#include "delayed_device.h"
#include "support/device_twins.h"
#include "sycl_support.h"

namespace lowtide::testing {
namespace {

TEST(SyclOptimizer, EveryBudgetGivesTheBitsOfTheHost) {
  LT_NEEDS_SYCL();
  Rng rng = seeded("optimizers on a SYCL device", 81);
  int64_t compared = 0, steps = 0, plans = 0, streamed = 0, managed = 0, above = 0, delays = 0;
  for (int trial = 0; trial < 120; ++trial) {
    const Config setup = random_setup(rng);
    lowtide::Memory memory;
    memory.chunk_bytes = rng.between(1, 4) * 4096;
    memory.managed = rng.chance(0.2);
    if (!memory.managed && rng.chance(0.85)) memory.device_bytes = rng.between(5, 30) * 4096;
    std::unique_ptr<Backend> backend = open_backend("sycl", "cpu");
    DelayedDevice* delayed = nullptr;
    if (trial % 2) {
      auto made = std::make_unique<DelayedDevice>(std::move(backend), rng.next());
      delayed = made.get();
      backend = std::move(made);
    }
    Twins twins(rng, setup, memory, std::move(backend));
    for (int64_t n = rng.between(1, 6); n > 0; --n)
      twins.add(pick(rng, std::vector{DType::kF32, DType::kBF16, DType::kF16}), random_sizes(rng));
    for (int step = 0; step < 6; ++step) {
      twins.step(rng.chance(0.3) ? 0.5 : 1);
      const MemoryReport report = twins.on_device().report();
      above += memory.device_bytes >= 0 && report.device_bytes > memory.device_bytes;
      if (rng.chance(0.2)) {
        EXPECT_EQ(twins.differing(), 0) << "trial " << trial;
      }
      if (rng.chance(0.1)) twins.on_device().offload();
    }
    EXPECT_EQ(twins.differing(), 0) << "trial " << trial << " " << setup.rule << " " << setup.state;
    streamed += twins.on_device().report().moved_per_step > 0;
    managed += twins.on_device().report().managed_bytes > 0;
    if (delayed) delays += delayed->delays();
    ++plans;
    compared += twins.compared();
    steps += twins.steps();
  }
  EXPECT_EQ(above, 0);
  EXPECT_GT(streamed, 20);
  EXPECT_GT(managed, 10);
  EXPECT_GT(delays, 1000);
  std::printf(
      "%lld plans (%lld streaming, %lld managed), %lld steps, queues delayed %lld times: differing bytes 0 of %lld, "
      "above the budget %lld\n",
      static_cast<long long>(plans), static_cast<long long>(streamed), static_cast<long long>(managed),
      static_cast<long long>(steps), static_cast<long long>(delays), static_cast<long long>(compared),
      static_cast<long long>(above));
}

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
    message_of(ErrorKind::kInvalidArgument, [&] { optimizer.step({&gradient, 1}, {.stream = stream}); });
    EXPECT_TRUE(optimizer.step({&gradient, 1}).applied);
    EXPECT_EQ(optimizer.steps(0), 2);
    ++refused;
  }
  // Another context at construction: its memory is that context's.
  Optimizer there(on("sycl", "", &elsewhere));
  message_of(ErrorKind::kInvalidArgument, [] { Optimizer(on("tpu", "", nullptr)); });
  message_of(ErrorKind::kInvalidArgument, [&] { Optimizer(on("cpu", "", &queue)); });
  OptimizerOptions with_disk = on("sycl", "", nullptr);
  with_disk.memory = {1 << 20, "/tmp"};
  message_of(ErrorKind::kInvalidArgument, [&] { Optimizer refused{with_disk}; });
  queue.wait();
  sycl::free(param, queue);
  std::printf("queues refused: %d/2\n", refused);
}

TEST(SyclOptimizer, AllocationsBeyondTheDeviceAreRefused) {
  LT_NEEDS_SYCL();
  Device& device = *SyclDevice::get().backend->device();
  const Device::Limits limits = device.limits();
  EXPECT_GT(limits.total, 0);
  EXPECT_GT(limits.largest_allocation, 0);
  for (const MemoryKind kind : {MemoryKind::kDevice, MemoryKind::kPinned, MemoryKind::kShared})
    message_of(ErrorKind::kOutOfMemory, [&] { device.free(device.allocate(kind, int64_t{1} << 50)); });
  std::printf("refused 3/3; the device has %lld bytes, %lld at a time\n", static_cast<long long>(limits.total),
              static_cast<long long>(limits.largest_allocation));
}

}  // namespace
}  // namespace lowtide::testing
