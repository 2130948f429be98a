// How state that is not kept on a device reaches it in each step.
#pragma once

#include <optional>
#include <string>

namespace lowtide {

enum class TransferMode {
  kCopy,      // copied into a slot in device memory, stepped there, and copied back
  kHybrid,    // copied into a slot; the step reads that and writes to host memory
  kZeroCopy,  // the step reads and writes host memory
};

inline constexpr const char* kTransferModeNames[] = {"copy", "hybrid", "zero_copy"};
inline const char* transfer_mode_name(TransferMode transfer) { return kTransferModeNames[static_cast<int>(transfer)]; }

// Nothing for "", which leaves the choice to the library. Throws kInvalidArgument for anything else that is no transfer
// mode.
std::optional<TransferMode> find_transfer_mode(const std::string& name);

}  // namespace lowtide
