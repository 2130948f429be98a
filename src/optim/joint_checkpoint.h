// One file for several optimizers that have the parameters of one between them, each those on its device.
//
// All have the same groups, and the same parameters by number: each has the others' parameters as tensors without
// elements. The file equals, bit for bit, the file of one optimizer with all parameters, and either loads it.
#pragma once

#include <span>
#include <string>

#include "lowtide/optimizer.h"

namespace lowtide {

// all: distinct, borrowed for the call; each refuses other calls meanwhile. owner: of each parameter, the place in
// `all` of the optimizer that has it. They throw what Optimizer::save, save_async and load throw, and leave as little
// changed.
void save_together(std::span<Optimizer* const> all, std::span<const int> owner, const std::string& path,
                   const std::string& metadata);
SaveHandle save_together_async(std::span<Optimizer* const> all, std::span<const int> owner, const std::string& path,
                               const std::string& metadata, int64_t copy_bytes);
std::string load_together(std::span<Optimizer* const> all, std::span<const int> owner, const std::string& path);

}  // namespace lowtide
