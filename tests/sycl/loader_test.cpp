// Which plug-in a process gets, and what it is told if it gets none; with plug-ins and runtimes of nothing.
#include "backend/sycl_loader.h"

#include <dlfcn.h>
#include <gtest/gtest.h>

#include <fstream>

#include "support/temporary.h"

namespace lowtide {
namespace {

const std::filesystem::path kStubs = LT_STUBS;

// The message, which has to hold every word; there is no plug-in.
void expect_missing(const std::filesystem::path& folder, std::initializer_list<const char*> words) {
  const SyclPlugin plugin = load_sycl_plugin(folder);
  EXPECT_EQ(plugin.open, nullptr);
  EXPECT_EQ(plugin.devices, nullptr);
  for (const char* word : words)
    EXPECT_NE(plugin.missing.find(word), std::string::npos) << word << " not in: " << plugin.missing;
  std::printf("%s\n", plugin.missing.c_str());
}

void expect_major(const std::filesystem::path& folder, int major) {
  const SyclPlugin plugin = load_sycl_plugin(folder);
  ASSERT_NE(plugin.devices, nullptr) << plugin.missing;
  EXPECT_NE(plugin.open, nullptr);
  std::string text;
  EXPECT_EQ(plugin.devices(&text), major);
}

TEST(SyclLoader, TakesTheNewest) {
  expect_major(kStubs / "both", 9);
  expect_major(kStubs / "only9", 9);
}

TEST(SyclLoader, SaysThatThereIsNone) {
  expect_missing(kStubs / "no such folder", {"no plug-in", "liblowtide_sycl9.so", "pip install intel-sycl-rt"});
}

TEST(SyclLoader, NamesTheRuntimeThatIsMissing) {
  expect_missing(kStubs / "needs_runtime", {"libsycl.so.99", "pip install intel-sycl-rt"});
}

TEST(SyclLoader, RefusesAnotherVersion) { expect_missing(kStubs / "old", {"0.0.0", LOWTIDE_VERSION}); }

TEST(SyclLoader, RefusesWhatIsNoPlugin) {
  const testing::TemporaryDirectory folder;
  const std::filesystem::path file = std::filesystem::path(folder.path()) / "liblowtide_sycl9.so";
  std::ofstream(file) << "not a library";
  expect_missing(folder.path(), {"liblowtide_sycl9.so", "file too short"});
  std::filesystem::copy_file(kStubs / "runtime8" / "libsycl.so.8", file,
                             std::filesystem::copy_options::overwrite_existing);
  expect_missing(folder.path(), {"version unknown"});
}

// The caller's queues belong to the libsycl that is loaded.
TEST(SyclLoader, GoesByTheRuntimeOfTheProcess) {
  void* runtime = dlopen((kStubs / "runtime8" / "libsycl.so.8").c_str(), RTLD_NOW | RTLD_LOCAL);
  ASSERT_NE(runtime, nullptr) << dlerror();
  expect_major(kStubs / "both", 8);
  expect_missing(kStubs / "only9", {"has loaded libsycl.so.8", "liblowtide_sycl8.so"});
  dlclose(runtime);
  expect_major(kStubs / "only9", 9);
}

}  // namespace
}  // namespace lowtide
