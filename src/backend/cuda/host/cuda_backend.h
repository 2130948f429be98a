// The CUDA backend runs every rule and codec on one device. Tensors are in memory that the device can address. `stream`
// is a cudaStream_t of the device, or nullptr for its legacy default stream. Work is queued without waiting, except
// where backend.h says synchronous. Used by one caller at a time. On a stream that is captured for a graph, only
// record_step, queue_guard, and packing and unpacking of signs can be queued; other operations read memory that may
// change before a replay.
//
// Target "exact" gives the CPU backend's bits. Target "fast" uses approximate arithmetic for steps of Adam and AdamW if
// parameter and gradient have the same type (docs/project/cuda.md).
#pragma once

#include <memory>
#include <string>

#include "backend/backend.h"

namespace lowtide::cuda_host {

// `target` is "exact" (the same as "") or "fast"; ":N" selects the device with that ordinal. `stream` selects its
// device; nullptr selects the target's or the current device. Throws kInvalidArgument for another name, an invalid
// ordinal, or a stream of a device other than the target's, and kUnsupported if no device can be used.
std::unique_ptr<Backend> make_backend(const std::string& target, void* stream);

}  // namespace lowtide::cuda_host
