// The functions that the core looks up in a plug-in, liblowtide_<backend><N>.so, and how it opens one. Plug-in and core
// come from one build: they share the C++ interface of backend.h, and the core refuses a plug-in of another version.
#pragma once

#include <filesystem>
#include <string>

#include "backend/backend.h"

namespace lowtide {

// The functions, named lt_<backend>_version, lt_<backend>_devices and lt_<backend>_open.

using PluginVersionFn = const char*();  // of the project, as version()

// The runtime's version and the devices that kernels can run on, in words, into `text`; returns how many there are.
// Throws Error.
using PluginDevicesFn = int(std::string* text);

// A backend; the caller deletes it. target and queue as open_backend (registry.h) takes them. Throws Error.
using PluginOpenFn = Backend*(const char* target, void* queue);

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
