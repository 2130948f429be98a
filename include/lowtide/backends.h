// What this installation can compute on.
#pragma once

#include <string>
#include <vector>

#include "lowtide/export.h"

namespace lowtide {

struct BackendReport {
  std::string name;        // "cpu", "sycl", "cuda"
  bool available = false;  // its kernels can run here and now
  std::string detail;      // what they run on, devices by name; or what is missing and how to get it
};

// One for each backend there could be, the CPU first. Loads the plug-ins that are installed, which stay loaded, and
// asks their drivers for devices; what was missing is looked for again at every call. Any thread; but the first call
// that finds the SYCL plug-in sets an environment variable for its duration, which other threads must not read then.
LT_API std::vector<BackendReport> report_backends();

}  // namespace lowtide
