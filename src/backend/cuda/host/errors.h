// Translates CUDA's errors, and records which devices this process has lost.
#pragma once

#include <cuda_runtime.h>

#include <atomic>
#include <string>

#include "core/error.h"

namespace lowtide::cuda_host {

// Returns the kind of an error for callers: kDeviceLost for errors from which CUDA does not recover.
ErrorKind kind_of(cudaError_t code);

// Returns text such as "an illegal memory access was encountered (cudaErrorIllegalAddress)", and advice if any.
std::string words_of(cudaError_t code);

// The number of devices of a process; describe_device() refuses higher ordinals.
inline constexpr int kMostDevices = 64;

// True if this process has had a kDeviceLost error on the device with this ordinal. CUDA then answers every later call
// with that error, and only a new process helps.
std::atomic<bool>& lost(int ordinal);

// Returns true if this process is a forked child of a process that had opened a device. In such a child, neither CUDA
// nor any device is usable, and pinned memory is not mapped.
bool is_forked();
// Makes is_forked() notice forks from now on.
void note_forks();
[[noreturn]] void fail_forked(ErrorKind kind, const char* doing);

}  // namespace lowtide::cuda_host
