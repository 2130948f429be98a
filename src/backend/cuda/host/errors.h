// Translates CUDA's errors, and records which devices this process has lost.
#pragma once

#include <cuda_runtime.h>

#include <atomic>
#include <string>

#include "core/error.h"

namespace lowtide::cuda_host {

// The kind of an error for a caller: kDeviceLost for errors from which CUDA does not recover.
ErrorKind kind_of(cudaError_t code);

// "an illegal memory access was encountered (cudaErrorIllegalAddress)", with advice if there is any.
std::string words_of(cudaError_t code);

// Devices of a process, by ordinal: describe_device() refuses higher ones.
inline constexpr int kMostDevices = 64;

// True if this process has had such an error on the device of this ordinal: CUDA then answers every later call with it,
// and only a new process helps.
std::atomic<bool>& lost(int ordinal);

// True if this process is a forked child of one that had opened a device: neither CUDA nor any device is usable there,
// and pinned memory is not mapped.
bool is_forked();
// Makes is_forked() notice forks from here on.
void note_forks();
[[noreturn]] void fail_forked(ErrorKind kind, const char* doing);

}  // namespace lowtide::cuda_host
