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

std::string capabilities(const Code& code) {
  const auto ptx = std::min_element(code.ptx.begin(), code.ptx.end());
  const auto oldest_of = [&](int major) {
    int oldest = 10 * major + 9;
    for (const int made : code.machine)
      if (made / 10 == major) oldest = std::min(oldest, made);
    return oldest;
  };
  std::string text;
  for (const int made : code.machine) {
    if (made != oldest_of(made / 10) || (ptx != code.ptx.end() && made >= *ptx)) continue;
    text += format("%d.%d to %d.9, ", made / 10, made % 10, made / 10);
  }
  if (ptx != code.ptx.end()) return text + format("%d.%d or newer", *ptx / 10, *ptx % 10);
  return text.substr(0, text.size() - 2);
}

}  // namespace lowtide::cuda_host
