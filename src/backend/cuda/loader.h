// Finds and loads the CUDA plug-in that the machine's driver can run.
#pragma once

#include <string>

#include "backend/plugin.h"

namespace lowtide {

struct CudaDriver {
  int version = 0;      // the driver's CUDA version, 13000 for 13.0; 0 without a driver
  std::string missing;  // why there is no driver, and how to get one
};

// Asks the driver's library for its version.
CudaDriver find_cuda_driver(const char* library = "libcuda.so.1");

// Loads the plug-in in `folders` for the newest CUDA that this driver runs. (Without the argument `driver`,
// load_cuda_plugin asks the machine's driver.) LOWTIDE_CUDA_PLUGIN=path names a plug-in to load whatever the driver is.
Plugin load_cuda_plugin(const PluginFolders& folders, const CudaDriver& driver);

}  // namespace lowtide
