#include "backend/cuda/loader.h"

#include <dlfcn.h>
#include <stdlib.h>

#include <algorithm>
#include <iterator>

#include "core/error.h"

namespace lowtide {
namespace {

// The major versions of CUDA for which plug-ins are built, newest first, and NVIDIA's first driver for each.
struct Major {
  int number;
  const char* driver;
};
constexpr Major kMajors[] = {{13, "580"}, {12, "525"}};
constexpr const Major& kOldest = kMajors[std::size(kMajors) - 1];

constexpr int major_of(int version) { return version / 1000; }

std::string words_of(int version) { return format("%d.%d", major_of(version), version % 1000 / 10); }

Plugin load(const std::string& path) {
  return load_plugin(path, "cuda", "a CUDA plug-in of this build needs no library beside the C++ compiler's");
}

}  // namespace

CudaDriver find_cuda_driver(const char* library) {
  void* const driver = dlopen(library, RTLD_NOW | RTLD_LOCAL);  // stays loaded, because the CUDA runtime opens it, too
  if (!driver)
    return {0,
            format("no CUDA driver, %s: install NVIDIA's, %s or newer (%s for a build with CUDA %d); in a container, "
                   "start it with its GPUs",
                   dlerror(), kMajors[0].driver, kOldest.driver, kOldest.number)};
  auto* const ask = reinterpret_cast<int (*)(int*)>(dlsym(driver, "cuDriverGetVersion"));
  int version = 0;
  if (!ask || ask(&version) != 0 || version <= 0)
    return {0, format("%s names no CUDA version: install NVIDIA's driver, %s or newer", library, kOldest.driver)};
  return {version, {}};
}

Plugin load_cuda_plugin(const PluginFolders& folders, const CudaDriver& driver) {
  if (const char* path = getenv("LOWTIDE_CUDA_PLUGIN"); path && *path) return load(path);
  if (driver.version <= 0) return {nullptr, driver.missing};
  if (major_of(driver.version) < kOldest.number)
    return {nullptr,
            format("got a driver for CUDA %s, wanted one for %d.0 or newer: install NVIDIA's driver, %s or newer",
                   words_of(driver.version).c_str(), kOldest.number, kOldest.driver)};
  const int runs = std::min(major_of(driver.version), kMajors[0].number);
  bool too_new = false;  // a plug-in is present, but needs a newer driver
  Plugin plugin;
  for (const Major& major : kMajors) {
    const std::string file = find_plugin(folders, "cuda", major.number).string();
    if (file.empty()) continue;
    if (runs < major.number) {
      too_new = true;
      continue;
    }
    Plugin found = load(file);
    if (found.exports) return found;
    if (plugin.missing.empty()) plugin.missing = found.missing;
  }
  if (!plugin.missing.empty()) return plugin;
  const std::string pip = pip_install_or("cuda", runs);
  if (too_new)
    plugin.missing = format(
        "got a driver for CUDA %s, wanted one for %d.0 or newer, of which the plug-in is: %sbuild from source with "
        "CUDA %d, or install NVIDIA's driver, %s or newer",
        words_of(driver.version).c_str(), kMajors[0].number, pip.c_str(), runs, kMajors[0].driver);
  else
    plugin.missing = format("no plug-in, %s: %sbuild from source with the CUDA toolkit (-DLOWTIDE_CUDA=ON)",
                            plugin_file(folders, "cuda", runs).c_str(), pip.c_str());
  return plugin;
}

Plugin load_cuda_plugin(const PluginFolders& folders) { return load_cuda_plugin(folders, find_cuda_driver()); }

}  // namespace lowtide
