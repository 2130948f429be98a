// The machine code and PTX in this build, and the part that a device can run.
#pragma once

#include <span>
#include <string>

namespace lowtide::cuda_host {

// The compute capabilities of the code, 90 for 9.0.
struct Code {
  std::span<const int> machine, ptx;
};
extern const Code kCode;

// Returns the code that a device of this capability runs: "sm_90", "compute_80" for PTX that the driver compiles, or ""
// for none. Machine code runs on devices of the same major version and the same or a later minor version; PTX runs on
// devices of its own or any later version. Asks no device, and so creates no context.
std::string code_for(const Code& code, int major, int minor);
// Returns the compute capabilities of devices that can run this code, as text: "8.0 to 8.9, 12.0 or newer".
std::string capabilities(const Code& code);

}  // namespace lowtide::cuda_host
