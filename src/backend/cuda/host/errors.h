// CUDA's errors as ours, and which devices this process has lost.
#pragma once

#include <cuda_runtime.h>

#include <atomic>
#include <string>

#include "core/error.h"

namespace lowtide::cuda_host {

// The kind of an error for a caller: kDeviceLost for those that CUDA does not recover from.
ErrorKind kind_of(cudaError_t code);

// "an illegal memory access was encountered (cudaErrorIllegalAddress)", and what to do where that is known.
std::string words_of(cudaError_t code);

// Devices of a process, by their ordinals: describe_device() refuses others.
inline constexpr int kMostDevices = 64;

// Whether this process has had such an error on the device of this ordinal: then CUDA answers every later call with
// it, and there is no way back but a new process.
std::atomic<bool>& lost(int ordinal);

// Whether this process is a forked child of one that had opened a device: CUDA is of no use there, nor is any device,
// and pinned memory is not mapped.
bool is_forked();
// Has is_forked() know of forks from here on.
void note_forks();
[[noreturn]] void fail_forked(ErrorKind kind, const char* doing);

}  // namespace lowtide::cuda_host
