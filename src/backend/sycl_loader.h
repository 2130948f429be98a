// Finds and loads the SYCL plug-in that fits the process.
#pragma once

#include <filesystem>
#include <string>

#include "backend/sycl/host/plugin.h"

namespace lowtide {

struct SyclPlugin {
  sycl_plugin::DevicesFn* devices = nullptr;
  sycl_plugin::OpenFn* open = nullptr;
  std::string missing;  // why there is none, and how to get it
};

// The one in `folder`: for the libsycl that the process has loaded (the caller's queues are of it), else for the newest
// that can be loaded. It stays loaded.
SyclPlugin load_sycl_plugin(const std::filesystem::path& folder);

}  // namespace lowtide
