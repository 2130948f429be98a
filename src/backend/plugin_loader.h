// Opens a plug-in and checks that it is of this build.
#pragma once

#include <filesystem>
#include <string>

#include "backend/plugin.h"

namespace lowtide {

struct Plugin {
  PluginDevicesFn* devices = nullptr;
  PluginOpenFn* open = nullptr;
  std::string missing;  // why there is none, and how to get it
};

// The shared library `path` as a plug-in of `backend` ("sycl", "cuda"). It stays loaded. hint: what to do if it, or
// what it needs, cannot be loaded.
Plugin load_plugin(const std::string& path, const char* backend, const char* hint);

// For each plug-in: the one in `folder`, where the library is, that fits the process and the machine.
#define LT_BACKEND(name, title, no_device) Plugin load_##name##_plugin(const std::filesystem::path& folder);
#include "backend/backends.def"
#undef LT_BACKEND

// Whether the process has loaded the shared library of this name.
bool is_library_loaded(const std::string& name);

}  // namespace lowtide
