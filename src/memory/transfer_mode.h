// How state that is not kept on a device reaches it in each step, and which way is fastest on this machine: measured
// once per kind of device, and remembered in a file.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "core/env.h"

namespace lowtide {

class Backend;

enum class TransferMode {
  kCopy,      // copied into a slot in device memory, stepped there, and copied back
  kHybrid,    // copied into a slot; the step reads that and writes to host memory
  kZeroCopy,  // the step reads and writes host memory
};

inline constexpr const char* kTransferModeNames[] = {"copy", "hybrid", "zero_copy"};
inline const char* transfer_mode_name(TransferMode transfer) { return kTransferModeNames[static_cast<int>(transfer)]; }

// The transfer mode of that name; empty for "", which leaves the choice to the library. Throws kInvalidArgument for
// other names.
std::optional<TransferMode> find_transfer_mode(const std::string& name);

// Bytes of state per second. For a transfer mode: bytes stepped, each of which travels both ways.
struct TransferRates {
  double in = 0, out = 0;  // copies alone, to the device and from it
  double copy = 0, hybrid = 0, zero_copy = 0;
};

inline constexpr int64_t kProbeBytes = 64 << 20;

// Takes a fraction of a second, 2 * `bytes` each of device memory and of pinned host memory, and three queues of the
// device, whose kernels must be able to access pinned memory (Device::steps_pinned). Throws kOutOfMemory, and the
// device's errors.
TransferRates measure_transfer_rates(Backend& backend, int64_t bytes = kProbeBytes);

// The fastest mode; but copies, which leave the device's cores to others, unless another mode is over 5 % faster.
TransferMode choose_transfer_mode(const TransferRates& rates);

// Reads and stores the rates for this key, in a separate file in `directory` that is replaced as a whole. A file that
// is missing, unreadable or damaged gives nothing; failure to write it is not an error.
std::optional<TransferRates> remembered_transfer_rates(Env& env, const std::string& directory, const std::string& key);
void remember_transfer_rates(Env& env, const std::string& directory, const std::string& key,
                             const TransferRates& rates);

// lowtide/ in $XDG_CACHE_HOME or in ~/.cache; "" if neither exists.
std::string cache_directory();

// The mode for this backend's device: remembered, or measured now. Copies if there is no memory for a measurement.
TransferMode fastest_transfer_mode(Env& env, Backend& backend, int64_t bytes = kProbeBytes);

}  // namespace lowtide
