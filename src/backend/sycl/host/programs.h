// The SPIR-V of the kernels, embedded in the plug-in.
#pragma once

#include <cstddef>
#include <span>
#include <string>

namespace lowtide::sycl_host {

// name: "step_<rule>", "ballot_<rule>", "sign_<type>", "aux", "fill", "vote", "apply" or "feedback". The bytes live as
// long as the plug-in.
std::span<const std::byte> program(const std::string& name);

}  // namespace lowtide::sycl_host
