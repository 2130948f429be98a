// The SYCL plug-in that a process gets, or the reason if it gets none; with stub plug-ins and runtimes.
#include "backend/plugin.h"

#include <dlfcn.h>
#include <gtest/gtest.h>

#include <fstream>

#include "loader/loader_support.h"
#include "support/test.h"

namespace lowtide {
namespace {

TEST(SyclLoader, TakesTheNewest) {
  expect_number(load_sycl_plugin({kStubs / "both"}), 9);
  expect_number(load_sycl_plugin({kStubs / "only9"}), 9);
}

TEST(SyclLoader, SaysThatThereIsNone) {
  expect_missing(load_sycl_plugin({kStubs / "no such folder"}),
                 {"no plug-in", "liblowtide_sycl9.so", "pip install \"lowtide[sycl]\"", "pip install intel-sycl-rt"});
}

TEST(SyclLoader, NamesTheRuntimeThatIsMissing) {
  expect_missing(load_sycl_plugin({kStubs / "needs_runtime"}), {"libsycl.so.99", "pip install intel-sycl-rt"});
}

TEST(SyclLoader, RefusesAnotherVersion) {
  expect_missing(load_sycl_plugin({kStubs / "old"}), {"0.0.0", LOWTIDE_VERSION});
}

TEST(SyclLoader, RefusesOneThatReadsOtherwise) {
  expect_missing(load_sycl_plugin({kStubs / "strange"}), {"liblowtide_sycl9.so", "laid out differently"});
}

TEST(SyclLoader, FindsThePackageBesideALibrary) {
  expect_number(load_sycl_plugin({kStubs / "site" / "lowtide"}), 9);
  expect_number(load_sycl_plugin({kStubs / "no such folder", kStubs / "site" / "lowtide_sycl"}), 9);
}

TEST(SyclLoader, RefusesWhatIsNoPlugin) {
  const testing::TemporaryDirectory folder;
  const std::filesystem::path file = std::filesystem::path(folder.path()) / "liblowtide_sycl9.so";
  std::ofstream(file) << "not a library";
  expect_missing(load_sycl_plugin({folder.path()}), {"liblowtide_sycl9.so", "file too short"});
  std::filesystem::copy_file(kStubs / "runtime8" / "libsycl.so.8", file,
                             std::filesystem::copy_options::overwrite_existing);
  expect_missing(load_sycl_plugin({folder.path()}), {"version unknown"});
}

// The caller's queues belong to the libsycl that is loaded.
TEST(SyclLoader, GoesByTheRuntimeOfTheProcess) {
  void* runtime = dlopen((kStubs / "runtime8" / "libsycl.so.8").c_str(), RTLD_NOW | RTLD_LOCAL);
  ASSERT_NE(runtime, nullptr) << dlerror();
  expect_number(load_sycl_plugin({kStubs / "both"}), 8);
  expect_missing(load_sycl_plugin({kStubs / "only9"}), {"has loaded libsycl.so.8", "liblowtide_sycl8.so"});
  dlclose(runtime);
  expect_number(load_sycl_plugin({kStubs / "only9"}), 9);
}

}  // namespace
}  // namespace lowtide
