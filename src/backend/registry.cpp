#include "backend/registry.h"

#include <dlfcn.h>

#include <filesystem>
#include <mutex>

#include "backend/cpu/cpu_backend.h"
#include "backend/sycl_loader.h"
#include "core/error.h"

namespace lowtide {
namespace {

// The folder of the shared library, Python module or program that this code is in.
std::filesystem::path own_folder() {
  Dl_info info;
  if (!dladdr(reinterpret_cast<void*>(&own_folder), &info) || !info.dli_fname) return {};
  std::error_code ignored;
  return std::filesystem::weakly_canonical(info.dli_fname, ignored).parent_path();
}

// A failure is not remembered: what is missing may be brought.
SyclPlugin sycl_plugin_of_process() {
  static std::mutex mutex;
  static SyclPlugin plugin;
  const std::lock_guard lock(mutex);
  if (!plugin.open) plugin = load_sycl_plugin(own_folder());
  return plugin;
}

BackendReport report_sycl() {
  const SyclPlugin plugin = sycl_plugin_of_process();
  if (!plugin.open) return {"sycl", false, plugin.missing};
  try {
    std::string text;
    if (plugin.devices(&text) > 0) return {"sycl", true, text};
    return {"sycl", false, text + "; no device: install its driver (a CPU's: pip install intel-opencl-rt)"};
  } catch (const Error& error) {
    return {"sycl", false, error.what()};
  }
}

BackendReport report_cpu() {
  const auto backend = cpu::make_backend("");
  std::string all;
  for (const std::string& target : backend->targets()) {
    if (!all.empty()) all += ", ";
    all += target;
  }
  return {"cpu", true, format("uses %s; this CPU can run %s", backend->target(), all.c_str())};
}

}  // namespace

std::vector<BackendReport> report_backends() {
  return {report_cpu(), report_sycl(), {"cuda", false, "not part of this build"}};
}

std::unique_ptr<Backend> open_backend(const std::string& name, const std::string& target, void* queue) {
  if (name == "cpu") {
    LT_REQUIRE(!queue, "got a queue for the cpu backend, wanted nullptr");
    return cpu::make_backend(target);
  }
  if (name == "sycl") {
    const SyclPlugin plugin = sycl_plugin_of_process();
    if (!plugin.open) fail(ErrorKind::kUnsupported, "no SYCL backend: %s", plugin.missing.c_str());
    return std::unique_ptr<Backend>(plugin.open(target.c_str(), queue));
  }
  LT_REQUIRE(name == "cuda", "got backend '%s', wanted cpu, sycl or cuda", name.c_str());
  fail(ErrorKind::kUnsupported, "the cuda backend is not part of this build");
}

}  // namespace lowtide
