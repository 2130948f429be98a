// Bad input: named errors of ours, nothing changed, and the backend works on.
#include <cstdint>
#include <limits>

#include "backend/sycl/host/errors.h"
#include "backend/sycl/host/kernels.h"
#include "backend/sycl/host/pointers.h"
#include "sycl/sycl_support.h"

namespace lowtide {
namespace {

using testing::DeviceBytes;
using testing::DeviceCase;
using testing::StepCase;
using testing::SyclDevice;

TEST(SyclErrors, AreOursAndLeaveAllAsItWas) {
  LT_NEEDS_SYCL();
  auto rng = testing::seeded("errors", 43);
  SyclDevice& device = SyclDevice::get();
  StepCase c(1, 2, DType::kF32, DType::kF32, 3, 300, rng);
  const StepCase before = c;
  DeviceCase on_device(c, *device.queue);
  const StepItem item = on_device.item();
  sycl::queue out_of_order(device.queue->get_context(), device.queue->get_device());
  EXPECT_NE(testing::message_of(ErrorKind::kInvalidArgument,
                                [&] {
                                  device.backend->step({&item, 1}, 1, false, &out_of_order);
                                })
                .find("in_order"),
            std::string::npos);
  on_device.fetch();
  EXPECT_EQ(differing_bytes(c, before), 0);
  EXPECT_NE(testing::message_of(ErrorKind::kInvalidArgument, [] { open_backend("sycl", "tpu"); }).find("tpu"),
            std::string::npos);
  EXPECT_NE(testing::message_of(ErrorKind::kInvalidArgument, [] { open_backend("tpu", ""); }).find("tpu"),
            std::string::npos);
  testing::message_of(ErrorKind::kUnsupported, [] { open_backend("cuda", ""); });
  bool gpu = false;
  for (const sycl::device& one : sycl::device::get_devices()) gpu = gpu || one.is_gpu();
  if (!gpu) {
    EXPECT_NE(testing::message_of(ErrorKind::kUnsupported, [] { open_backend("sycl", "gpu"); }).find("gpu"),
              std::string::npos);
  }
  // And it works on.
  device.backend->step({&item, 1}, 1, false, device.queue.get());
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
  LT_NEEDS_SYCL();
  SyclDevice& device = SyclDevice::get();
  sycl_host::Kernels kernels(device.queue->get_context(), device.queue->get_device(), bad_program);
  int refused = 0;
  for (const char* rule : {"adamw", "sgd", "adam"}) {
    const std::string message = testing::message_of(ErrorKind::kUnsupported, [&] { kernels.step(find_rule(rule), 0); });
    EXPECT_NE(message.find("step_" + std::string(rule)), std::string::npos) << message;
    refused += !message.empty();
    std::printf("%s: %s\n", rule, message.c_str());
  }
  EXPECT_EQ(refused, 3);
  kernels.step(find_rule("lion"), 0);
  kernels.first_nonfinite();
}

TEST(SyclErrors, MoreMemoryThanThereIs) {
  LT_NEEDS_SYCL();
  const sycl::queue& queue = *SyclDevice::get().queue;
  for (const auto kind : {sycl::usm::alloc::device, sycl::usm::alloc::host}) {
    const std::string message = testing::message_of(ErrorKind::kOutOfMemory, [&] {
      sycl_host::guarded("allocation",
                         [&] { sycl_host::allocate(size_t{1} << 50, queue.get_context(), queue.get_device(), kind); });
    });
    EXPECT_NE(message.find("1125899906842624 bytes"), std::string::npos) << message;
  }
}

// The CPU device can address everything; others are told apart by what they say of themselves.
TEST(SyclErrors, MemoryOfNoContext) {
  LT_NEEDS_SYCL();
  SyclDevice& device = SyclDevice::get();
  auto rng = testing::seeded("pointers", 45);
  const sycl_host::PointerCheck check(device.queue->get_context(), false), lenient(device.queue->get_context(), true);
  StepCase c(find_rule("adamw"), find_codec("dynamic8"), DType::kF32, DType::kF32, 3, 300, rng);
  DeviceCase on_device(c, *device.queue);
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
    const std::string message = testing::message_of(ErrorKind::kInvalidArgument, [&] { check(bad, 17); });
    EXPECT_NE(message.find(std::string(what) + " of item 17"), std::string::npos) << message;
    lenient(bad, 17);
  }
  testing::message_of(ErrorKind::kInvalidArgument, [&] { check.gradient(host, 0); });
  // Of another context, and after an offset within an allocation.
  sycl::queue other(sycl::context(device.queue->get_device()), device.queue->get_device(),
                    sycl::property::queue::in_order());
  DeviceBytes elsewhere(c.grad.data(), c.grad.size(), other);
  StepItem bad = good;
  bad.grad = elsewhere.data();
  testing::message_of(ErrorKind::kInvalidArgument, [&] { check(bad, 0); });
  StepItem inner = good;
  inner.grad = static_cast<const std::byte*>(inner.grad) + 64;
  check(inner, 0);
  CodecItem converted;
  converted.rows = 3, converted.row_length = 300, converted.codes = good.codes[0], converted.scales = good.scales[0];
  std::vector<float> values(900);
  converted.values = values.data();
  testing::message_of(ErrorKind::kInvalidArgument, [&] { check(converted); });
  converted.values = static_cast<float*>(good.param);
  check(converted);
  std::printf("%zu arrays of a step, 1 of a conversion, 1 of another context refused\n", std::size(swaps));
}

// Control of the guards of all tests here: one byte beyond is seen.
TEST(SyclErrors, GuardsSeeOneByte) {
  LT_NEEDS_SYCL();
  sycl::queue& queue = *SyclDevice::get().queue;
  const char text[] = "seven b";
  for (const int at : {-1, 8}) {
    DeviceBytes bytes(text, 8, queue);
    EXPECT_TRUE(bytes.guards_are_whole());
    queue.memset(bytes.data() + at, 0, 1).wait();
    EXPECT_FALSE(bytes.guards_are_whole());
  }
}

}  // namespace
}  // namespace lowtide
