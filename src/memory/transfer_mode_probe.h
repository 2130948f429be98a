// Which transfer mode is fastest on this machine: measured once for each kind of device, and remembered in a file.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "backend/backend.h"
#include "core/env.h"
#include "memory/transfer_mode.h"

namespace lowtide {

// Bytes of state per second. For a transfer mode: bytes stepped, each of which goes both ways.
struct TransferRates {
  double in = 0, out = 0;  // a copy alone, to the device and from it
  double copy = 0, hybrid = 0, zero_copy = 0;
};

inline constexpr int64_t kProbeBytes = 64 << 20;

// Takes a fraction of a second, 2 * `bytes` of device memory and of pinned host memory each, and three queues of the
// device, whose kernels must reach pinned memory (Device::steps_pinned). Throws kOutOfMemory, and the device's errors.
TransferRates measure_transfer_rates(Backend& backend, int64_t bytes = kProbeBytes);

// The fastest mode; but copies, which leave the device's cores to others, unless another is faster by more than 5 %.
TransferMode choose_transfer_mode(const TransferRates& rates);

// The rates remembered for this key, and remembering them, in a file of its own in `directory` that is replaced as a
// whole. A file that is missing, unreadable or broken gives nothing; a file that cannot be written is no error.
std::optional<TransferRates> remembered_transfer_rates(Env& env, const std::string& directory, const std::string& key);
void remember_transfer_rates(Env& env, const std::string& directory, const std::string& key,
                             const TransferRates& rates);

// lowtide/ in $XDG_CACHE_HOME or in ~/.cache; "" where there is neither.
std::string cache_directory();

// The mode for this backend's device: remembered, or measured now. Copies where there is no memory to measure with.
TransferMode fastest_transfer_mode(Env& env, Backend& backend, int64_t bytes = kProbeBytes);

}  // namespace lowtide
