// The built plug-in where there is no CUDA driver: it loads, says so, and opens nothing. All other cases of a device
// are those of tests/device.
#include <gtest/gtest.h>
#include <stdlib.h>

#include <cstdio>

#include "backend/cuda/loader.h"
#include "backend/plugin_backend.h"
#include "backend/registry.h"
#include "support/test.h"

namespace lowtide {
namespace {

class CudaWithoutDriver : public ::testing::Test {
 protected:
  void SetUp() override {
    if (const CudaDriver driver = find_cuda_driver(); driver.version > 0)
      GTEST_SKIP() << "this machine has a CUDA driver, of version " << driver.version;
    setenv("LOWTIDE_CUDA_PLUGIN", LT_CUDA_PLUGIN, 1);
  }
  void TearDown() override { unsetenv("LOWTIDE_CUDA_PLUGIN"); }
};

TEST_F(CudaWithoutDriver, LoadsAndSaysSo) {
  const Plugin plugin = load_cuda_plugin({}, {0, "none"});
  ASSERT_NE(plugin.exports, nullptr) << plugin.missing;
  std::string text;
  EXPECT_EQ(list_devices(*plugin.exports, &text), 0);
  EXPECT_NE(text.find("no driver"), std::string::npos) << text;
  for (const BackendReport& report : report_backends()) {
    if (report.name != "cuda") continue;
    EXPECT_FALSE(report.available);
    EXPECT_NE(report.detail.find("no driver: install"), std::string::npos) << report.detail;
    std::printf("%s\n", report.detail.c_str());
  }
}

TEST_F(CudaWithoutDriver, OpensNothing) {
  for (const char* target : {"", "exact", "fast", ":0", "fast:1"}) {
    try {
      open_backend("cuda", target);
      FAIL() << "a device where there is none";
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kUnsupported) << error.what();
      EXPECT_NE(std::string(error.what()).find("driver"), std::string::npos) << error.what();
    }
  }
}

TEST_F(CudaWithoutDriver, KnowsItsTargets) {
  for (const char* target : {"best", "exact:", "fast:x", ":-1", "exact:1:2", ":99999999999"}) {
    try {
      open_backend("cuda", target);
      FAIL() << target;
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kInvalidArgument) << error.what();
      EXPECT_NE(std::string(error.what()).find("wanted exact or fast"), std::string::npos) << error.what();
    }
  }
}

}  // namespace
}  // namespace lowtide
