// Checksums of chunk records: 64-bit XXH3 over segments, which several threads can compute at once. The result does not
// depend on the CPU or the number of threads.
#pragma once

#include <cstddef>
#include <cstdint>

namespace lowtide {

// Returns the checksum of a record of `bytes` bytes, seeded with the record's number and generation, so that it matches
// neither another record nor the same record of an earlier step.
uint64_t chunk_checksum(const std::byte* data, int64_t bytes, int64_t number, uint64_t generation, int threads = 1);

namespace checksum {

using Hash = uint64_t (*)(const void* data, size_t bytes, uint64_t seed);
uint64_t hash_baseline(const void* data, size_t bytes, uint64_t seed);
#ifdef LOWTIDE_CHECKSUM_AVX2
uint64_t hash_avx2(const void* data, size_t bytes, uint64_t seed);  // for CPUs with AVX2
#endif

}  // namespace checksum
}  // namespace lowtide
