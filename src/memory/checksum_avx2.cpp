// XXH3 compiled for AVX2 (the build adds the flag to this file), which is twice as fast as the baseline. Includes no
// header with inline functions that the linker could use in other files.
#define XXH_INLINE_ALL
#include <xxhash.h>

#include "memory/checksum.h"

#ifdef LOWTIDE_CHECKSUM_AVX2
namespace lowtide::checksum {

uint64_t hash_avx2(const void* data, size_t bytes, uint64_t seed) { return XXH3_64bits_withSeed(data, bytes, seed); }

}  // namespace lowtide::checksum
#endif
