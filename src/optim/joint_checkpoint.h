// One file for several optimizers that have the parameters of one between them, each those on its device.
//
// All of them have the same groups, and as many parameters with the same numbers: each has those of the others as
// tensors without elements. The file is that of one optimizer with all of them, bit for bit, and is loaded by either.
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
