// CRC-32C (Castagnoli), as of iSCSI: the same on every CPU.
#pragma once

#include <cstddef>
#include <cstdint>

namespace lowtide {

// Of `bytes` bytes behind those whose checksum is `before`. The processor's instruction where there is one.
uint32_t crc32c(const void* data, size_t bytes, uint32_t before = 0);

// The same by a table; for tests.
uint32_t crc32c_by_table(const void* data, size_t bytes, uint32_t before = 0);

}  // namespace lowtide
