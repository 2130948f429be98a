#include "memory/checksum.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <algorithm>
#include <vector>

#include "core/thread_pool.h"

namespace lowtide {
namespace checksum {

uint64_t hash_baseline(const void* data, size_t bytes, uint64_t seed) {
  return XXH3_64bits_withSeed(data, bytes, seed);
}

namespace {

Hash best() {
#ifdef LOWTIDE_CHECKSUM_AVX2
  if (__builtin_cpu_supports("avx2")) return hash_avx2;
#endif
  return hash_baseline;
}

}  // namespace
}  // namespace checksum

uint64_t chunk_checksum(const std::byte* data, int64_t bytes, int64_t number, uint64_t generation, int threads) {
  static const checksum::Hash hash = checksum::best();
  constexpr int64_t kSegment = 256 << 10;
  const uint64_t seed = static_cast<uint64_t>(number) * 0x9e3779b97f4a7c15u + generation;
  const int64_t segments = (bytes + kSegment - 1) / kSegment;
  std::vector<uint64_t> parts(static_cast<size_t>(segments));
  parallel_for(segments, static_cast<int>(std::min<int64_t>(threads, segments / 4)), [&](int64_t i) {
    const int64_t at = i * kSegment;
    parts[static_cast<size_t>(i)] =
        hash(data + at, static_cast<size_t>(std::min(kSegment, bytes - at)), seed + static_cast<uint64_t>(i));
  });
  return hash(parts.data(), parts.size() * sizeof(uint64_t), seed);
}

}  // namespace lowtide
