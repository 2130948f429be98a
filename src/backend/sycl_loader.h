// Finds and loads the SYCL plug-in that fits the process.
#pragma once

#include <filesystem>

#include "backend/plugin_loader.h"

namespace lowtide {

// The one in `folder`: for the libsycl that the process has loaded (the caller's queues are of it), else for the newest
// that can be loaded.
Plugin load_sycl_plugin(const std::filesystem::path& folder);

}  // namespace lowtide
