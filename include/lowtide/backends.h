// The backends of this installation and the devices that each can use.
#pragma once

#include <string>
#include <vector>

#include "lowtide/export.h"

namespace lowtide {

struct BackendReport {
  std::string name;        // "cpu", "sycl", "cuda"
  bool available = false;  // its kernels can run here and now
  std::string detail;      // the devices it runs on, by name; or what is missing and how to get it
};

// Reports on every backend that this version knows, the CPU first. Loads the installed plug-ins, which stay loaded, and
// asks their drivers for devices. Each call looks again for backends that were unavailable.
//
// Threads: any. The first call that finds the SYCL plug-in sets an environment variable for its duration; other threads
// must not read the environment then. Throws only std::bad_alloc: a backend that fails says so in its report.
LT_API std::vector<BackendReport> report_backends();

}  // namespace lowtide
