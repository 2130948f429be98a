// The places of computation that this installation has. The CPU is part of the library; others are plug-ins, shared
// libraries beside it that are loaded when first asked for and stay loaded.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "backend/backend.h"

namespace lowtide {

struct BackendReport {
  std::string name;    // "cpu", "sycl", "cuda"
  bool available;      // open_backend gives one
  std::string detail;  // what it runs on; or what is missing and how to get it
};

// All there could be. Loads plug-ins that are there, and asks their drivers for devices. Any thread.
std::vector<BackendReport> report_backends();

// target: "" for the best, or as the backend names it (the CPU's instruction sets; "gpu" or "cpu" for sycl). Throws
// kInvalidArgument for names that no backend has, kUnsupported if what it needs is not there.
std::unique_ptr<Backend> open_backend(const std::string& name, const std::string& target);

}  // namespace lowtide
