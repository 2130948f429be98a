// Bad input: named errors of ours, nothing changed, and the backend works on.
#include <cstdint>
#include <cstdio>
#include <future>
#include <limits>
#include <memory>
#include <set>
#include <string>

#include "backend/sycl/host/errors.h"
#include "backend/sycl/host/kernels.h"
#include "backend/sycl/host/sycl_device.h"
#include "backend/sycl/host/device_memory.h"
#include "sycl/sycl_support.h"

namespace lowtide {
namespace {

using testing::DeviceCase;
using testing::StepCase;
using testing::sycl_queue;
using testing::TestDevice;

TEST(SyclErrors, AreOursAndLeaveAllAsItWas) {
  LT_NEEDS_DEVICE();
  auto rng = testing::seeded("errors", 43);
  TestDevice& device = TestDevice::get();
  StepCase c(1, 2, DType::kF32, DType::kF32, 3, 300, rng);
  const StepCase before = c;
  DeviceCase on_device(c);
  const StepItem item = on_device.item();
  sycl::queue out_of_order(sycl_queue().get_context(), sycl_queue().get_device());
  EXPECT_NE(testing::refusal([&] {
              device.backend->step({&item, 1}, 1, false, &out_of_order);
            }).find("in_order"),
            std::string::npos);
  on_device.fetch();
  EXPECT_EQ(differing_bytes(c, before), 0);
  EXPECT_NE(testing::refusal([] { open_backend("sycl", "tpu"); }).find("tpu"), std::string::npos);
  EXPECT_NE(testing::refusal([] { open_backend("tpu", ""); }).find("tpu"), std::string::npos);
  testing::refusal([] { open_backend("cuda", ""); }, ErrorKind::kUnsupported);
  bool gpu = false;
  for (const sycl::device& one : sycl::device::get_devices()) gpu = gpu || one.is_gpu();
  if (!gpu) {
    EXPECT_NE(testing::refusal([] { open_backend("sycl", "gpu"); }, ErrorKind::kUnsupported).find("gpu"),
              std::string::npos);
  }
  // And it works on.
  device.backend->step({&item, 1}, 1, false, device.queue);
  on_device.fetch();
  EXPECT_GT(differing_bytes(c, before), 0);
}

// No SPIR-V, nothing, and a program without the kernel that is looked for: an error, and the next family is built all
// the same.
std::span<const std::byte> bad_program(const std::string& name) {
  static const std::vector<std::byte> garbage(4096, std::byte{0x5a});
  if (name == "step_adamw") return garbage;
  if (name == "step_sgd") return {};
  if (name == "step_adam") return sycl_host::program("aux");
  return sycl_host::program(name);
}

TEST(SyclErrors, BadPrograms) {
  LT_NEEDS_DEVICE();
  sycl_host::Kernels kernels(sycl_queue().get_context(), sycl_queue().get_device(), bad_program);
  int refused = 0;
  for (const char* rule : {"adamw", "sgd", "adam"}) {
    const std::string message =
        testing::refusal([&] { kernels.of_rule("step", find_rule(rule), 0); }, ErrorKind::kUnsupported);
    EXPECT_NE(message.find("step_" + std::string(rule)), std::string::npos) << message;
    refused += !message.empty();
    std::printf("%s: %s\n", rule, message.c_str());
  }
  EXPECT_EQ(refused, 3);
  kernels.of_rule("step", find_rule("lion"), 0);
  kernels.find("aux", "first_nonfinite");
}

// A build may leave ballots out, as the dev build does.
TEST(SyclErrors, AProgramThatTheBuildLeftOutIsNamed) {
  const std::string message =
      testing::refusal([] { sycl_host::program("ballot_of_no_rule"); }, ErrorKind::kUnsupported);
  EXPECT_NE(message.find("'ballot_of_no_rule'"), std::string::npos) << message;
  EXPECT_NE(message.find("LOWTIDE_SYCL_BALLOTS"), std::string::npos) << message;
}

// The CPU device can address everything; others are told apart by what they say of themselves.
TEST(SyclErrors, MemoryOfNoContext) {
  LT_NEEDS_DEVICE();
  auto rng = testing::seeded("pointers", 45);
  const sycl_host::PointerCheck check(sycl_queue().get_context(), false), lenient(sycl_queue().get_context(), true);
  StepCase c(find_rule("adamw"), find_codec("dynamic8"), DType::kF32, DType::kF32, 3, 300, rng);
  DeviceCase on_device(c);
  const StepItem good = on_device.item(), host = c.item();
  check(good, 0);
  check.gradient(good, 0);
  const std::pair<const char*, void (*)(StepItem&, const StepItem&)> swaps[] = {
      {"the parameter", [](StepItem& i, const StepItem& h) { i.param = h.param; }},
      {"the gradient", [](StepItem& i, const StepItem& h) { i.grad = h.grad; }},
      {"codes", [](StepItem& i, const StepItem& h) { i.codes[1] = h.codes[1]; }},
      {"scales", [](StepItem& i, const StepItem& h) { i.scales[0] = h.scales[0]; }}};
  for (const auto& [what, swap] : swaps) {
    StepItem bad = good;
    swap(bad, host);
    const std::string message = testing::refusal([&] { check(bad, 17); });
    EXPECT_NE(message.find(std::string(what) + " of item 17"), std::string::npos) << message;
    lenient(bad, 17);
  }
  testing::refusal([&] { check.gradient(host, 0); });
  // Memory of another context, also after an offset within an allocation.
  sycl::queue other(sycl::context(sycl_queue().get_device()), sycl_queue().get_device(),
                    sycl::property::queue::in_order());
  auto* const elsewhere = sycl::malloc_device<std::byte>(64, other);
  StepItem bad = good;
  bad.grad = elsewhere;
  testing::refusal([&] { check(bad, 0); });
  sycl::free(elsewhere, other);
  StepItem inner = good;
  inner.grad = static_cast<const std::byte*>(inner.grad) + 64;
  check(inner, 0);
  CodecItem converted;
  converted.rows = 3, converted.row_length = 300, converted.codes = good.codes[0], converted.scales = good.scales[0];
  std::vector<float> values(900);
  converted.values = values.data();
  testing::refusal([&] { check(converted); });
  converted.values = static_cast<float*>(good.param);
  check(converted);
  std::printf("%zu arrays of a step, 1 of a conversion, 1 of another context refused\n", std::size(swaps));
}

// A late error of the runtime is thrown once, by the next wait. A wrong queue is refused even where there is nothing to
// wait for.
TEST(SyclErrors, LateOnesAreThrownByTheNextWait) {
  LT_NEEDS_DEVICE();
  const sycl::queue& queue = sycl_queue();
  const auto late = std::make_shared<sycl_host::LateErrors>();
  sycl_host::SyclDevice device(queue, late);
  void* const own = device.make_queue();
  device.host_wait(device.record(own));
  late->first = "lost work";
  const std::string message = testing::refusal([&] { device.host_wait(device.record(own)); }, ErrorKind::kInternal);
  EXPECT_NE(message.find("lost work"), std::string::npos) << message;
  device.host_wait(device.record(own));
  sycl::queue out_of_order(queue.get_context(), queue.get_device());
  EXPECT_NE(testing::refusal([&] { device.wait(&out_of_order, nullptr); }).find("in_order"), std::string::npos);
  device.wait(own, nullptr);
}

// Calls of a step, one for each chunk of state, do not wait for each other: buffers are given out while none is done,
// and used again when they are.
TEST(SyclUploads, ManyAreUnderWay) {
  LT_NEEDS_DEVICE();
  const sycl::queue& queue = sycl_queue();
  sycl_host::Uploads uploads(sycl_host::UploadMemory{queue.get_context(), queue.get_device()});
  constexpr size_t kMost = sycl_host::Uploads::kMostBytes / sycl_host::Uploads::kSmallest;
  std::promise<void> gate;
  sycl::queue slow(queue.get_context(), queue.get_device());
  sycl::event busy = slow.submit(
      [&](sycl::handler& handler) { handler.host_task([open = gate.get_future().share()] { open.wait(); }); });
  std::set<const void*> buffers;
  for (size_t i = 0; i < kMost; ++i) {
    sycl_host::Uploads::Buffer& buffer = uploads.acquire(1);
    buffer.used = busy;
    buffers.insert(buffer.host.get());
  }
  EXPECT_EQ(buffers.size(), kMost);
  gate.set_value();
  busy.wait();
  int again = 0;
  for (int i = 0; i < 10; ++i) again += static_cast<int>(buffers.count(uploads.acquire(4096).host.get()));
  EXPECT_EQ(again, 10);
  std::set<const void*> large;
  for (int i = 0; i < 50; ++i) large.insert(uploads.acquire(sycl_host::Uploads::kMostBytes).host.get());
  EXPECT_LE(large.size(), sycl_host::Uploads::kAlways);
  std::printf("%zu buffers under way at a time, used again %d/10\n", buffers.size(), again);
}

}  // namespace
}  // namespace lowtide
