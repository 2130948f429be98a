#include "backend/cuda/host/code.h"

#include <algorithm>

#include "core/error.h"

namespace lowtide::cuda_host {
namespace {

constexpr int kMachine[] = {LT_CUDA_MACHINE_CODE}, kPtx[] = {LT_CUDA_PTX};

}  // namespace

const Code kCode = {kMachine, kPtx};

std::string code_for(const Code& code, int major, int minor) {
  const int device = 10 * major + minor;
  int newest = 0;
  for (const int made : code.machine)
    if (made / 10 == major && made <= device) newest = std::max(newest, made);
  if (newest) return format("sm_%d", newest);
  for (const int made : code.ptx)
    if (made <= device) newest = std::max(newest, made);
  return newest ? format("compute_%d", newest) : "";
}

}  // namespace lowtide::cuda_host
