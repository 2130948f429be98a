// The functions of lowtide/sign.h on any backend. Memory is the backend's and borrowed; work is queued on `stream`, and
// memory must stay until it is done. Throws kInvalidArgument; then nothing was queued.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "backend/backend.h"
#include "lowtide/sign.h"

namespace lowtide::sign {

// The process's shared CPU backend, made by the first call. Only use its operations on signs, decode and encode: they
// keep no state between calls, so any number of threads may call them at once.
Backend& host_backend();
// The same, for objects that keep their backend; it lives as long as the process.
inline std::shared_ptr<Backend> shared_host_backend() { return {std::shared_ptr<Backend>(), &host_backend()}; }

void pack_on(Backend& backend, void* stream, DType dtype, const void* values, int64_t count, std::span<std::byte> bits,
             const Options& options);
// The sign bits themselves of host memory, 1 for a clear sign bit, whatever the value, including -0 and NaNs.
void pack_sign_bits(DType dtype, const void* values, int64_t count, std::span<std::byte> bits, const Options& options);
void unpack_on(Backend& backend, void* stream, std::span<const std::byte> bits, DType dtype, void* values,
               int64_t count, std::span<const std::byte> zeros, const Options& options);
void majority_on(Backend& backend, void* stream, const Vote& vote, std::span<std::byte> result,
                 std::span<std::byte> zeros);

}  // namespace lowtide::sign
