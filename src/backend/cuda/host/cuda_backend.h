// The CUDA backend: every rule and codec, on one device. Tensors are in memory that the device can address; `stream` is
// a cudaStream_t of the device, nullptr its legacy default stream. Work is queued without waiting, except where
// backend.h says synchronous. One call at a time. On a stream that is being captured for a graph, only record_step,
// queue_guard, and packing and unpacking of signs can be queued: other operations read memory that may change before a
// replay.
//
// With target "exact" the bits equal the CPU backend's; "fast" uses approximate arithmetic for steps of Adam and AdamW
// if parameter and gradient have the same type (docs/project/cuda.md).
#pragma once

#include <memory>
#include <string>

#include "backend/backend.h"

namespace lowtide::cuda_host {

// target: "exact" or "fast" arithmetic, with ":N" on the device of that ordinal; "": exact. stream: selects its device;
// nullptr: the target's, or the current one. Throws kInvalidArgument for another name, an invalid ordinal, or a stream
// of another device than the target's; kUnsupported if no device can be used.
std::unique_ptr<Backend> make_backend(const std::string& target, void* stream);

}  // namespace lowtide::cuda_host
