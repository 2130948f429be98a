// The functions of lowtide/sign.h on any backend. They borrow memory of the backend and queue work on `stream`; the
// memory must stay until the work is done. If they throw kInvalidArgument, nothing was queued.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "backend/backend.h"
#include "lowtide/sign.h"

namespace lowtide::sign {

// Returns the CPU backend that the process shares, which the first call creates. Use only its sign operations, decode
// and encode: they keep no state between calls, so any number of threads may call them at once.
Backend& host_backend();
// Returns the same backend for objects that share ownership of their backend. It lives as long as the process.
inline std::shared_ptr<Backend> shared_host_backend() { return {std::shared_ptr<Backend>(), &host_backend()}; }

void pack_on(Backend& backend, void* stream, DType dtype, const void* values, int64_t count, std::span<std::byte> bits,
             const Options& options);
// Packs the inverted sign bits of values in host memory: 1 for a clear sign bit, even for zeros and NaNs.
void pack_sign_bits(DType dtype, const void* values, int64_t count, std::span<std::byte> bits, const Options& options);
void unpack_on(Backend& backend, void* stream, std::span<const std::byte> bits, DType dtype, void* values,
               int64_t count, std::span<const std::byte> zeros, const Options& options);
void majority_on(Backend& backend, void* stream, const Vote& vote, std::span<std::byte> result,
                 std::span<std::byte> zeros);

}  // namespace lowtide::sign
