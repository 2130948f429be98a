// Finds and loads the SYCL plug-in for the libsycl that the process has loaded (which made the caller's queues), or
// else for the newest libsycl that can be loaded.
#include "backend/plugin.h"

#include "core/error.h"

namespace lowtide {
namespace {

// Major versions of libsycl for which plug-ins are built, newest first.
constexpr int kSyclMajors[] = {9, 8};

Plugin load(const std::string& path) {
  return load_plugin(path, "sycl",
                     "libsycl comes with pip install intel-sycl-rt or oneAPI; LD_LIBRARY_PATH may name its folder");
}

}  // namespace

Plugin load_sycl_plugin(const PluginFolders& folders) {
  const auto find = [&](int major) { return find_plugin(folders, "sycl", major).string(); };
  Plugin plugin;
  for (const int major : kSyclMajors) {
    if (!is_library_loaded(format("libsycl.so.%d", major))) continue;
    if (const std::string file = find(major); !file.empty()) return load(file);
    plugin.missing = format(
        "the process has loaded libsycl.so.%d, and there is no plug-in for it, %s: %sbuild with that SYCL runtime",
        major, plugin_file(folders, "sycl", major).c_str(), pip_install_or("sycl", major).c_str());
    return plugin;
  }
  for (const int major : kSyclMajors) {
    const std::string file = find(major);
    if (file.empty()) continue;
    Plugin found = load(file);
    if (found.exports) return found;
    if (plugin.missing.empty()) plugin.missing = found.missing;
  }
  if (plugin.missing.empty())
    plugin.missing =
        format("no plug-in, %s: %sbuild from source with the SYCL runtime (pip install intel-sycl-rt)",
               plugin_file(folders, "sycl", kSyclMajors[0]).c_str(), pip_install_or("sycl", kSyclMajors[0]).c_str());
  return plugin;
}

}  // namespace lowtide
