#include "memory/transfer_mode.h"

#include "core/error.h"

namespace lowtide {

std::optional<TransferMode> find_transfer_mode(const std::string& name) {
  if (name.empty()) return std::nullopt;
  for (const TransferMode transfer : {TransferMode::kCopy, TransferMode::kHybrid, TransferMode::kZeroCopy})
    if (name == transfer_mode_name(transfer)) return transfer;
  fail(ErrorKind::kInvalidArgument,
       "got transfer='%s', wanted 'copy', 'zero_copy', 'hybrid', or '' to have it measured", name.c_str());
}

}  // namespace lowtide
