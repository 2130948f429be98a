// The CUDA backend: every rule and codec, on one device. Tensors are memory that the device can address; `stream` is a
// cudaStream_t of the device, nullptr its legacy default stream. Work is queued and not waited for, except where
// backend.h says synchronous. One call at a time. On a stream that is being captured for a graph only record_step and
// queue_guard, and packing and unpacking of signs, can be queued: the others read memory that a replay would find
// changed.
//
// Bits are those of the CPU backend with target "exact"; "fast" has approximate arithmetic for steps of Adam and
// AdamW whose parameter and gradient are of one type (docs/cuda.md).
#pragma once

#include <memory>
#include <string>

#include "backend/backend.h"

namespace lowtide::cuda_host {

// target: "exact" or "fast" arithmetic, with ":N" on the device of that ordinal; "": exact. stream: whose device is to
// be used, or nullptr: the target's, or the present one. Throws kInvalidArgument for another name, an ordinal that
// there is not, or a stream of another device than the target's; kUnsupported where no device can be used.
std::unique_ptr<Backend> make_backend(const std::string& target, void* stream);

}  // namespace lowtide::cuda_host
