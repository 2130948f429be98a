// Finds and loads the SYCL plug-in: for the libsycl that the process has loaded (the caller's queues are of it), else
// for the newest that can be loaded.
#include "backend/plugin.h"

#include "core/error.h"

namespace lowtide {
namespace {

// Majors of libsycl that plug-ins are built for, newest first.
constexpr int kSyclMajors[] = {9, 8};

Plugin load(const std::string& path) {
  return load_plugin(path, "sycl",
                     "libsycl comes with pip install intel-sycl-rt or oneAPI; LD_LIBRARY_PATH may name its folder");
}

}  // namespace

Plugin load_sycl_plugin(const std::filesystem::path& folder) {
  const auto file_of = [&](int major) { return (folder / format("liblowtide_sycl%d.so", major)).string(); };
  const auto is_there = [&](int major) {
    std::error_code ignored;
    return std::filesystem::exists(file_of(major), ignored);
  };
  Plugin plugin;
  for (const int major : kSyclMajors) {
    if (!is_library_loaded(format("libsycl.so.%d", major))) continue;
    if (is_there(major)) return load(file_of(major));
    plugin.missing =
        format("the process has loaded libsycl.so.%d, and there is no plug-in for it, %s: build with that SYCL runtime",
               major, file_of(major).c_str());
    return plugin;
  }
  for (const int major : kSyclMajors) {
    if (!is_there(major)) continue;
    Plugin found = load(file_of(major));
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
