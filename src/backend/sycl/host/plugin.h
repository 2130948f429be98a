// What the core looks up in liblowtide_sycl<N>.so. Plug-in and core come from one build: they share the C++ interface
// of backend.h, and the core refuses a plug-in of another version.
#pragma once

#include <string>

#include "backend/backend.h"

namespace lowtide::sycl_plugin {

inline constexpr const char kVersionSymbol[] = "lt_sycl_version";
inline constexpr const char kDevicesSymbol[] = "lt_sycl_devices";
inline constexpr const char kOpenSymbol[] = "lt_sycl_open";

using VersionFn = const char*();  // of the project, as version()

// The runtime's version and the devices that kernels can run on, in words, into `text`; returns how many there are.
// Throws Error.
using DevicesFn = int(std::string* text);

// A backend; the caller deletes it. target: "gpu", "cpu", or "" for the best there is, with ":N" the
// device N of it. queue: a sycl::queue* whose
// device and context are to be used, or nullptr. Throws Error.
using OpenFn = Backend*(const char* target, const void* queue);

}  // namespace lowtide::sycl_plugin
