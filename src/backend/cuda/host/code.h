// The machine code and PTX in this build, and the part that a device runs.
#pragma once

#include <span>
#include <string>

namespace lowtide::cuda_host {

// Compute capabilities, 90 for 9.0.
struct Code {
  std::span<const int> machine, ptx;
};
extern const Code kCode;

// "sm_90", or "compute_80" for PTX that the driver compiles; "" if a device of this capability runs none of it. By
// CUDA's rules, machine code runs on devices of the same major version and the same or a later minor version; PTX runs
// on all devices of its version or a later one. Asks no device, and so creates no context.
std::string code_for(const Code& code, int major, int minor);
// The compute capabilities of devices that can run this code, as text: "8.0 to 8.9, 12.0 or newer".
std::string capabilities(const Code& code);

}  // namespace lowtide::cuda_host
