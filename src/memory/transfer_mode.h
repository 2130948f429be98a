// The ways in which state that is not kept on a device reaches it in each step. The fastest way on this machine is
// measured once per kind of device and remembered in a file.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "core/env.h"

namespace lowtide {

class Backend;

enum class TransferMode {
  kCopy,      // state is copied into a slot in device memory, stepped there, and copied back
  kHybrid,    // state is copied into a slot; the step reads the slot and writes to host memory
  kZeroCopy,  // the step reads and writes host memory
};

inline constexpr const char* kTransferModeNames[] = {"copy", "hybrid", "zero_copy"};
inline const char* transfer_mode_name(TransferMode transfer) { return kTransferModeNames[static_cast<int>(transfer)]; }

// Returns the transfer mode with this name, or nothing for "", which leaves the choice to the library. Throws
// kInvalidArgument for other names.
std::optional<TransferMode> find_transfer_mode(const std::string& name);

// Bytes of state per second. The rates of transfer modes count bytes stepped, each of which travels both ways.
struct TransferRates {
  double in = 0, out = 0;  // copies alone, to the device and from the device
  double copy = 0, hybrid = 0, zero_copy = 0;
};

inline constexpr int64_t kProbeBytes = 64 << 20;

// Takes a fraction of a second and uses 2 * `bytes` of device memory, as much pinned host memory, and three queues of
// the device. The device's kernels must be able to access pinned memory (Device::steps_pinned). Throws kOutOfMemory and
// the device's errors.
TransferRates measure_transfer_rates(Backend& backend, int64_t bytes = kProbeBytes);

// Returns the fastest mode, or copies, which leave the device's cores free, unless another mode is over 5 % faster.
TransferMode choose_transfer_mode(const TransferRates& rates);

// Read and store the rates for this key in a file of its own in `directory`, which is replaced as a whole. A file that
// is missing, unreadable or damaged gives nothing; failing to write it is not an error.
std::optional<TransferRates> remembered_transfer_rates(Env& env, const std::string& directory, const std::string& key);
void remember_transfer_rates(Env& env, const std::string& directory, const std::string& key,
                             const TransferRates& rates);

// Returns the path of lowtide/ in $XDG_CACHE_HOME or in ~/.cache, or "" if neither variable is usable.
std::string cache_directory();

// Returns the fastest mode for this backend's device, remembered or measured now, or kCopy if memory is too short for
// that.
TransferMode fastest_transfer_mode(Env& env, Backend& backend, int64_t bytes = kProbeBytes);

}  // namespace lowtide
