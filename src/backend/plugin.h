// The functions that the core looks up in a plug-in, liblowtide_<backend><N>.so. Plug-in and core come from one build:
// they share the C++ interface of backend.h, and the core refuses a plug-in of another version.
#pragma once

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

}  // namespace lowtide
