#include <cuda_runtime.h>

#include "backend/border_export.h"
#include "backend/cuda/host/code.h"
#include "backend/cuda/host/cuda_backend.h"
#include "backend/cuda/host/errors.h"
#include "lowtide/export.h"

namespace lowtide::cuda_host {
namespace {

std::string words_of_version(int version) { return format("CUDA %d.%d", version / 1000, version % 1000 / 10); }

// Returns "0: NVIDIA H200, compute capability 9.0, ...: the same bits as the CPU backend", or why the device cannot be
// used. Opens no device, because that would take several hundred MB on each.
std::string words_of_device(int ordinal, bool& usable) {
  usable = false;
  cudaDeviceProp found{};
  if (const cudaError_t code = cudaGetDeviceProperties(&found, ordinal); code != cudaSuccess) {
    cudaGetLastError();
    return format("; %d: %s", ordinal, words_of(code).c_str());
  }
  const std::string text = format("; %d: %s, compute capability %d.%d, %.1f GiB", ordinal, found.name, found.major,
                                  found.minor, static_cast<double>(found.totalGlobalMem) / (1 << 30));
  const std::string code = code_for(kCode, found.major, found.minor);
  usable = !code.empty();
  if (!usable)
    return text + ", cannot be used: no kernel of this build runs there, wanted compute capability " +
           capabilities(kCode);
  return format("%s, kernels of %s: the same bits as the CPU backend (fast: approximate)", text.c_str(), code.c_str());
}

int report(std::string* text) {
  int runtime = 0, driver = 0, count = 0, usable = 0;
  cudaRuntimeGetVersion(&runtime);
  cudaDriverGetVersion(&driver);
  *text = words_of_version(runtime);
  if (driver == 0) {
    *text += ", no driver: install NVIDIA's (580 or newer for CUDA 13, 525 or newer for CUDA 12)";
    return 0;
  }
  *text += ", driver for " + words_of_version(driver);
  if (const cudaError_t code = cudaGetDeviceCount(&count); code != cudaSuccess) {
    cudaGetLastError();
    *text += ": " + words_of(code);
    return 0;
  }
  for (int ordinal = 0; ordinal < count; ++ordinal) {
    bool can_be_used;
    *text += words_of_device(ordinal, can_be_used);
    usable += can_be_used;
  }
  return usable;
}

}  // namespace
}  // namespace lowtide::cuda_host

LT_EXPORT_PLUGIN(cuda, lowtide::cuda_host::report, lowtide::cuda_host::make_backend)
