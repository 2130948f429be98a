// The CUDA plug-in that a process gets for its driver, or the reason if it gets none; with plug-ins and drivers of
// nothing.
#include "backend/cuda/loader.h"

#include <gtest/gtest.h>
#include <stdlib.h>

#include "loader/loader_support.h"

namespace lowtide {
namespace {

CudaDriver of_version(int version) { return {version, {}}; }

CudaDriver stub_driver(const char* name) { return find_cuda_driver((kStubs / name / "libcuda.so").c_str()); }

TEST(CudaLoader, TakesTheNewestThatTheDriverRuns) {
  expect_number(load_cuda_plugin({kStubs / "cuda_both"}, of_version(13000)), 13);
  expect_number(load_cuda_plugin({kStubs / "cuda_both"}, of_version(14020)), 13);
  expect_number(load_cuda_plugin({kStubs / "cuda_both"}, of_version(12090)), 12);
  expect_number(load_cuda_plugin({kStubs / "cuda_both"}, of_version(12000)), 12);
  expect_number(load_cuda_plugin({kStubs / "cuda_only12"}, of_version(13010)), 12);
}

TEST(CudaLoader, TakesAnOlderOneWhereTheNewestIsOfAnotherBuild) {
  expect_number(load_cuda_plugin({kStubs / "cuda_old13"}, of_version(13000)), 12);
}

TEST(CudaLoader, SaysThatTheDriverIsTooOld) {
  expect_missing(load_cuda_plugin({kStubs / "cuda_both"}, of_version(11040)), {"got", "11.4", "wanted", "12.0", "525"});
  expect_missing(load_cuda_plugin({kStubs / "cuda_only13"}, of_version(12080)),
                 {"got", "12.8", "wanted", "13.0", "pip install \"lowtide[cuda12]\"", "source with CUDA 12", "580"});
}

TEST(CudaLoader, SaysThatThereIsNoPlugin) {
  expect_missing(load_cuda_plugin({kStubs / "no such folder"}, of_version(13000)),
                 {"no plug-in", "liblowtide_cuda13.so", "pip install \"lowtide[cuda13]\"", "CUDA toolkit"});
  expect_missing(load_cuda_plugin({kStubs / "no such folder"}, of_version(12080)),
                 {"no plug-in", "liblowtide_cuda12.so", "pip install \"lowtide[cuda12]\"", "CUDA toolkit"});
}

TEST(CudaLoader, FindsThePackageBesideALibrary) {
  expect_number(load_cuda_plugin({kStubs / "site" / "lowtide"}, of_version(13000)), 13);
  expect_number(load_cuda_plugin({kStubs / "site" / "lowtide"}, of_version(12090)), 12);
}

TEST(CudaLoader, RefusesAnotherVersion) {
  expect_missing(load_cuda_plugin({kStubs / "cuda_old"}, of_version(13000)), {"0.0.0", LOWTIDE_VERSION});
}

TEST(CudaLoader, SaysThatThereIsNoDriver) {
  const CudaDriver none = find_cuda_driver("libcuda_of_nobody.so.1");
  EXPECT_EQ(none.version, 0);
  expect_missing(load_cuda_plugin({kStubs / "cuda_both"}, none),
                 {"no CUDA driver", "libcuda_of_nobody.so.1", "install NVIDIA's"});
  const CudaDriver broken = stub_driver("driver_broken");
  EXPECT_EQ(broken.version, 0);
  expect_missing(load_cuda_plugin({kStubs / "cuda_both"}, broken), {"names no CUDA version", "driver_broken"});
}

TEST(CudaLoader, AsksTheDriverForItsVersion) {
  EXPECT_EQ(stub_driver("driver13").version, 13000);
  expect_number(load_cuda_plugin({kStubs / "cuda_both"}, stub_driver("driver13")), 13);
}

// Whatever the driver is, and even without one.
TEST(CudaLoader, TakesThePluginThatTheEnvironmentNames) {
  constexpr const char* kVariable = "LOWTIDE_CUDA_PLUGIN";
  struct Unset {
    ~Unset() { unsetenv(kVariable); }
  } unset;
  setenv(kVariable, (kStubs / "cuda_only12" / "liblowtide_cuda12.so").c_str(), 1);
  expect_number(load_cuda_plugin({kStubs / "cuda_both"}, of_version(13000)), 12);
  expect_number(load_cuda_plugin({kStubs / "cuda_both"}, {0, "none"}), 12);
  setenv(kVariable, "/no/such/plugin.so", 1);
  expect_missing(load_cuda_plugin({kStubs / "cuda_both"}, of_version(13000)), {"/no/such/plugin.so"});
  setenv(kVariable, (kStubs / "both" / "liblowtide_sycl9.so").c_str(), 1);
  expect_missing(load_cuda_plugin({kStubs / "cuda_both"}, of_version(13000)), {"version unknown"});
  setenv(kVariable, "", 1);
  expect_number(load_cuda_plugin({kStubs / "cuda_both"}, of_version(13000)), 13);
}

}  // namespace
}  // namespace lowtide
