// One file for several optimizers that share one set of parameters, each stepping those on its device.
//
// All have the same groups and the same parameter numbers; each has the others' parameters as tensors without elements.
// The file equals, bit for bit, the file of one optimizer with all parameters, and either can load it.
#pragma once

#include <span>
#include <string>

#include "lowtide/optimizer.h"

namespace lowtide {

// all: distinct, borrowed for the call; each refuses other calls meanwhile. owner: for each parameter, the index in
// `all` of the optimizer that has it. They throw like Optimizer::save, save_async and load, and change as little on
// failure.
void save_together(std::span<Optimizer* const> all, std::span<const int> owner, const std::string& path,
                   const std::string& metadata);
SaveHandle save_together_async(std::span<Optimizer* const> all, std::span<const int> owner, const std::string& path,
                               const std::string& metadata, int64_t copy_bytes);
std::string load_together(std::span<Optimizer* const> all, std::span<const int> owner, const std::string& path);

}  // namespace lowtide
