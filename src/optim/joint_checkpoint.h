// One file for several optimizers that share a set of parameters: each steps the parameters on its own device.
//
// All have the same groups and parameter numbers; each holds the others' parameters as tensors without elements. The
// file equals, bit for bit, that of one optimizer with all parameters, and either can load it.
#pragma once

#include <span>
#include <string>

#include "lowtide/optimizer.h"

namespace lowtide {

// all: distinct optimizers, borrowed for the call; each refuses other calls meanwhile. owner: for each parameter, the
// index in `all` of its optimizer. These fail like Optimizer::save, save_async and load.
void save_together(std::span<Optimizer* const> all, std::span<const int> owner, const std::string& path,
                   const std::string& metadata);
SaveHandle save_together_async(std::span<Optimizer* const> all, std::span<const int> owner, const std::string& path,
                               const std::string& metadata, int64_t copy_bytes);
std::string load_together(std::span<Optimizer* const> all, std::span<const int> owner, const std::string& path);

}  // namespace lowtide
