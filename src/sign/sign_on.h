// lowtide/sign.h on any backend: memory is the backend's, and work is ordered on `stream`. Signs in the order "big"
// are for host memory only (kUnsupported).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "backend/backend.h"
#include "lowtide/sign.h"

namespace lowtide::sign {

// The CPU of lowtide/sign.h: made by the first call, one for the process. Only its operations on signs, decode
// and encode may be used: they keep nothing between calls, so that any number of threads can make them at a time.
Backend& host_backend();

void pack_on(Backend& backend, void* stream, DType dtype, const void* values, int64_t count, std::span<std::byte> bits,
             const Options& options);
void unpack_on(Backend& backend, void* stream, std::span<const std::byte> bits, DType dtype, void* values,
               int64_t count, std::span<const std::byte> zeros, const Options& options);
void majority_on(Backend& backend, void* stream, const Vote& vote, std::span<std::byte> result,
                 std::span<std::byte> zeros);

}  // namespace lowtide::sign
