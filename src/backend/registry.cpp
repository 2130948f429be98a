#include "backend/registry.h"

#include <dlfcn.h>

#include <cstring>
#include <filesystem>
#include <mutex>

#include "backend/cpu/cpu_backend.h"
#include "backend/sycl/host/plugin.h"
#include "core/error.h"

namespace lowtide {
namespace {

// Majors of libsycl that plug-ins are built for, newest first.
constexpr int kSyclMajors[] = {9, 8};

// The folder of the shared library, Python module or program that this code is in.
std::filesystem::path own_folder() {
  Dl_info info;
  if (!dladdr(reinterpret_cast<void*>(&report_backends), &info) || !info.dli_fname) return {};
  std::error_code ignored;
  return std::filesystem::weakly_canonical(info.dli_fname, ignored).parent_path();
}

struct SyclPlugin {
  sycl_plugin::DevicesFn* devices = nullptr;
  sycl_plugin::OpenFn* open = nullptr;
  std::string missing;  // why there is none
};

// Puts why it did not work into plugin.missing.
void load(const std::string& path, SyclPlugin& plugin) {
  void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (!library) {
    plugin.missing = format("%s; pip install intel-sycl-rt brings libsycl", dlerror());
    return;
  }
  auto* version = reinterpret_cast<sycl_plugin::VersionFn*>(dlsym(library, sycl_plugin::kVersionSymbol));
  auto* devices = reinterpret_cast<sycl_plugin::DevicesFn*>(dlsym(library, sycl_plugin::kDevicesSymbol));
  auto* open = reinterpret_cast<sycl_plugin::OpenFn*>(dlsym(library, sycl_plugin::kOpenSymbol));
  if (!version || !devices || !open || std::strcmp(version(), LOWTIDE_VERSION) != 0) {
    plugin.missing =
        format("%s is of version %s, wanted %s", path.c_str(), version ? version() : "unknown", LOWTIDE_VERSION);
    return;
  }
  plugin.devices = devices, plugin.open = open;
}

// The process's plug-in. One process can hold only one libsycl of use to us: if there is one already, the caller's
// queues are of it. A failure is not remembered: what is missing may be brought.
SyclPlugin sycl_plugin_of_process() {
  static std::mutex mutex;
  static SyclPlugin plugin;
  const std::lock_guard lock(mutex);
  if (plugin.open) return plugin;
  const auto folder = own_folder();
  const auto file_of = [&](int major) { return (folder / format("liblowtide_sycl%d.so", major)).string(); };
  plugin.missing = format(
      "no plug-in liblowtide_sycl9.so in %s: this build was made without the SYCL runtime (pip "
      "install intel-sycl-rt, and build again)",
      folder.c_str());
  std::error_code ignored;
  for (const int major : kSyclMajors)
    if (dlopen(format("libsycl.so.%d", major).c_str(), RTLD_NOW | RTLD_NOLOAD)) {
      if (std::filesystem::exists(file_of(major), ignored))
        load(file_of(major), plugin);
      else
        plugin.missing =
            format("the process uses libsycl.so.%d, and there is no plug-in for it: %s", major, file_of(major).c_str());
      return plugin;
    }
  for (const int major : kSyclMajors)
    if (!plugin.open && std::filesystem::exists(file_of(major), ignored)) load(file_of(major), plugin);
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

std::unique_ptr<Backend> open_backend(const std::string& name, const std::string& target) {
  if (name == "cpu") return cpu::make_backend(target);
  if (name == "sycl") {
    const SyclPlugin plugin = sycl_plugin_of_process();
    if (!plugin.open) fail(ErrorKind::kUnsupported, "no SYCL backend: %s", plugin.missing.c_str());
    return std::unique_ptr<Backend>(plugin.open(target.c_str()));
  }
  LT_REQUIRE(name == "cuda", "got backend '%s', wanted cpu, sycl or cuda", name.c_str());
  fail(ErrorKind::kUnsupported, "the cuda backend is not part of this build");
}

}  // namespace lowtide
