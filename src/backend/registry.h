// Opens the places of computation that report_backends() (lowtide/backends.h) tells of. The CPU is part of the library;
// others are plug-ins, shared libraries that are loaded when first asked for and stay loaded.
#pragma once

#include <filesystem>
#include <memory>
#include <string>

#include "backend/backend.h"
#include "lowtide/backends.h"

namespace lowtide {

// target: "" for the best, or as the backend names it: the CPU's instruction sets; for sycl "gpu" or "cpu", and "gpu:1"
// for the second of the platform that the first is of; for cuda "exact" (the default: bits of the CPU backend) or
// "fast", and ":1" or "fast:1" for the device of that ordinal. queue: of the backend (a sycl::queue*, a cudaStream_t),
// whose device and context are to be used; nullptr: its own, and for cuda the present device. Throws kInvalidArgument
// for names that no backend has, kUnsupported if what it needs is not there.
std::unique_ptr<Backend> open_backend(const std::string& name, const std::string& target, void* queue = nullptr);

// Has plug-ins looked for in this folder, too, behind the library's own (plugin.h). Any thread.
void add_plugin_folder(const std::filesystem::path& folder);

}  // namespace lowtide
