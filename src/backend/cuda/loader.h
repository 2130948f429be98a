// Finds and loads the CUDA plug-in that the machine's driver can run.
#pragma once

#include <string>

#include "backend/plugin.h"

namespace lowtide {

struct CudaDriver {
  int version = 0;      // the driver's CUDA version, 13000 for 13.0; 0: no driver
  std::string missing;  // why it is missing, and how to get it
};

// Asks the driver's library for its version.
CudaDriver find_cuda_driver(const char* library = "libcuda.so.1");

// The plug-in in `folders` for the newest CUDA that this driver runs (load_cuda_plugin without a driver: the
// machine's). LOWTIDE_CUDA_PLUGIN=path names another, which is loaded whatever the driver is.
Plugin load_cuda_plugin(const PluginFolders& folders, const CudaDriver& driver);

}  // namespace lowtide
