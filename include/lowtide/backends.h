// The backends of this installation, and what each can compute on.
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

// Reports on each backend that there could be, the CPU first. Loads the plug-ins that are installed, which stay loaded,
// and asks their drivers for devices. Each call looks again for what was missing.
//
// Threads: any. But the first call that finds the SYCL plug-in sets an environment variable for its duration, which
// other threads must not read then. Throws std::bad_alloc only: a backend that fails says so in its report.
LT_API std::vector<BackendReport> report_backends();

}  // namespace lowtide
