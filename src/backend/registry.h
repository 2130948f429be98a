// Opens the backends that report_backends() (lowtide/backends.h) lists. The CPU is part of the library; others are
// plug-ins, shared libraries that are loaded on first use and stay loaded.
#pragma once

#include <filesystem>
#include <memory>
#include <string>

#include "backend/backend.h"
#include "lowtide/backends.h"

namespace lowtide {

// target: "" for the best, or in the backend's terms: the CPU's instruction sets; for sycl "gpu" or "cpu", and "gpu:1"
// for the second device of the first one's platform; for cuda "exact" (the default: the same bits as the CPU backend)
// or "fast", and ":1" or "fast:1" for the device of that ordinal. queue: a queue of the backend (a sycl::queue*, a
// cudaStream_t) whose device and context to use; nullptr: its own, and for cuda the current device. Throws
// kInvalidArgument for unknown names, kUnsupported if something that the backend needs is missing.
std::unique_ptr<Backend> open_backend(const std::string& name, const std::string& target, void* queue = nullptr);

// Also searches this folder for plug-ins, after the library's own (plugin.h). Any thread.
void add_plugin_folder(const std::filesystem::path& folder);

}  // namespace lowtide
