// Claim: optimizers refuse queues that they cannot be ordered on.
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
  LT_NEEDS_DEVICE();
  const sycl::device device = sycl_queue().get_device();
  sycl::queue queue = sycl_queue();
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

}  // namespace
}  // namespace lowtide::testing
