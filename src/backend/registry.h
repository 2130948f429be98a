// Opens the backends that report_backends() (lowtide/backends.h) lists. The CPU backend is part of the library; the
// others are plug-ins, shared libraries that are loaded on first use and stay loaded.
#pragma once

#include <filesystem>
#include <memory>
#include <string>

#include "backend/backend.h"
#include "lowtide/backends.h"

namespace lowtide {

// `target` is "" for the best target, or depends on the backend. cpu: an instruction set. sycl: "gpu" or "cpu", and
// "gpu:1" for the second device of the first device's platform. cuda: "exact" (the default, with the bits of the CPU
// backend) or "fast", and ":1" or "fast:1" for the device with that ordinal. `queue` is a queue (a sycl::queue*, a
// cudaStream_t) whose device and context the backend uses, or nullptr for a queue of its own and, for cuda, the current
// device. Throws kInvalidArgument for unknown names, and kUnsupported if something that the backend needs is missing.
std::unique_ptr<Backend> open_backend(const std::string& name, const std::string& target, void* queue = nullptr);

// Adds a folder that is searched for plug-ins after the library's own (plugin.h). May be called by any thread.
void add_plugin_folder(const std::filesystem::path& folder);

}  // namespace lowtide
