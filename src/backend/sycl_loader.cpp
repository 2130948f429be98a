#include "backend/sycl_loader.h"

#include <dlfcn.h>

#include <cstring>

#include "core/error.h"

namespace lowtide {
namespace {

// Majors of libsycl that plug-ins are built for, newest first.
constexpr int kSyclMajors[] = {9, 8};

SyclPlugin load(const std::string& path) {
  SyclPlugin plugin;
  void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (!library) {
    plugin.missing = format(
        "%s (libsycl comes with pip install intel-sycl-rt or oneAPI; LD_LIBRARY_PATH may name its folder)", dlerror());
    return plugin;
  }
  auto* version = reinterpret_cast<sycl_plugin::VersionFn*>(dlsym(library, sycl_plugin::kVersionSymbol));
  auto* devices = reinterpret_cast<sycl_plugin::DevicesFn*>(dlsym(library, sycl_plugin::kDevicesSymbol));
  auto* open = reinterpret_cast<sycl_plugin::OpenFn*>(dlsym(library, sycl_plugin::kOpenSymbol));
  if (!version || !devices || !open || std::strcmp(version(), LOWTIDE_VERSION) != 0) {
    plugin.missing = format("%s is of version %s, wanted %s: install both from one build", path.c_str(),
                            version ? version() : "unknown", LOWTIDE_VERSION);
    dlclose(library);
    return plugin;
  }
  plugin.devices = devices, plugin.open = open;
  return plugin;
}

bool is_loaded(int major) {
  void* library = dlopen(format("libsycl.so.%d", major).c_str(), RTLD_NOW | RTLD_NOLOAD);
  if (library) dlclose(library);
  return library != nullptr;
}

}  // namespace

SyclPlugin load_sycl_plugin(const std::filesystem::path& folder) {
  const auto file_of = [&](int major) { return (folder / format("liblowtide_sycl%d.so", major)).string(); };
  const auto is_there = [&](int major) {
    std::error_code ignored;
    return std::filesystem::exists(file_of(major), ignored);
  };
  SyclPlugin plugin;
  for (const int major : kSyclMajors) {
    if (!is_loaded(major)) continue;
    if (is_there(major)) return load(file_of(major));
    plugin.missing =
        format("the process has loaded libsycl.so.%d, and there is no plug-in for it, %s: build with that SYCL runtime",
               major, file_of(major).c_str());
    return plugin;
  }
  for (const int major : kSyclMajors) {
    if (!is_there(major)) continue;
    SyclPlugin found = load(file_of(major));
    if (found.open) return found;
    if (plugin.missing.empty()) plugin.missing = found.missing;
  }
  if (plugin.missing.empty())
    plugin.missing =
        format("no plug-in, %s: this build was made without the SYCL runtime (pip install intel-sycl-rt, build again)",
               file_of(kSyclMajors[0]).c_str());
  return plugin;
}

}  // namespace lowtide
