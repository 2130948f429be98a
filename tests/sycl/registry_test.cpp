// Devices and queues: what is reported, and whose queues are taken.
#include "backend/sycl/host/sycl_backend.h"
#include "sycl/sycl_support.h"

namespace lowtide {
namespace {

using testing::DeviceCase;
using testing::StepCase;
using testing::sycl_queue;
using testing::TestDevice;

// A queue of another context has kernels and tables of its own; nullptr is the backend's queue.
TEST(SyclQueues, OfAnyContextGiveTheSameBits) {
  LT_NEEDS_DEVICE();
  auto rng = testing::seeded("queues", 44);
  TestDevice& device = TestDevice::get();
  const StepCase start(1, 2, DType::kBF16, DType::kBF16, 5, 1000, rng);
  StepCase wanted = start;
  const StepItem item = wanted.item();
  open_backend("cpu", "")->step({&item, 1}, 1, false, nullptr);
  const sycl::context context(sycl_queue().get_device());
  sycl::queue other(context, sycl_queue().get_device(), sycl::property::queue::in_order());
  ASSERT_NE(other.get_context(), sycl_queue().get_context());
  for (sycl::queue* queue : {&other, &sycl_queue(), static_cast<sycl::queue*>(nullptr)}) {
    StepCase got = start;
    DeviceCase on_device(got);
    const StepItem there = on_device.item();
    device.backend->step({&there, 1}, 1, false, queue);
    // The backend's own queue is seen through a synchronous call only.
    device.backend->first_nonfinite({&there, 1}, 1, queue);
    on_device.fetch();
    EXPECT_EQ(differing_bytes(got, wanted), 0);
  }
  std::printf("3 queues, 0 bytes differ\n");
}

// A report, whenever it is asked for, leaves the CPU's driver to be found: both look for it in the same way.
TEST(SyclRegistry, SaysWhatIsThere) {
  LT_NEEDS_DEVICE();
  const auto reports = report_backends();
  ASSERT_EQ(reports.size(), 3u);
  for (const BackendReport& report : reports)
    std::printf("%s: %s: %s\n", report.name.c_str(), report.available ? "available" : "not available",
                report.detail.c_str());
  EXPECT_TRUE(reports[0].available && reports[0].name == "cpu");
  EXPECT_TRUE(reports[1].available && reports[1].name == "sycl");
  EXPECT_NE(reports[1].detail.find("cpu: "), std::string::npos);
  EXPECT_FALSE(reports[2].available);
  EXPECT_EQ(getenv("OCL_ICD_FILENAMES"), nullptr) << "the environment is as it was";
  EXPECT_EQ(TestDevice::get().backend->target(), std::string("cpu"));
}

// This machine's CPU is one device: number 0 is there, and no other.
TEST(SyclRegistry, TakesDevicesByNumber) {
  LT_NEEDS_DEVICE();
  EXPECT_EQ(open_backend("sycl", "cpu:0")->target(), std::string("cpu"));
  for (const char* target : {"cpu:1", "cpu:", "cpu:x", "cpu:0x", "cpu:-1", "cuda:0"})
    EXPECT_NE(testing::refusal([&] { open_backend("sycl", target); }).find(target), std::string::npos);
}

TEST(WithoutSyclDevice, IsSaid) {
  ASSERT_NE(getenv("ONEAPI_DEVICE_SELECTOR"), nullptr) << "to be run with a selector that no device fits";
  const BackendReport report = report_backends()[1];
  if (report.available) GTEST_SKIP() << report.detail;
  EXPECT_NE(report.detail.find("pip install intel-opencl-rt"), std::string::npos) << report.detail;
  std::printf("%s\n", report.detail.c_str());
  for (const char* target : {"", "cpu", "gpu"})
    EXPECT_NE(testing::refusal([&] { open_backend("sycl", target); }, ErrorKind::kUnsupported).find("driver"),
              std::string::npos);
}

}  // namespace
}  // namespace lowtide
