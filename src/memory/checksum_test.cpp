#include "memory/checksum.h"

#include "support/test.h"

namespace lowtide::testing {
namespace {

TEST(Checksum, DoesNotDependOnThreadsOrInstructionSet) {
  Rng rng = seeded("checksum", 97);
  std::vector<std::byte> data(5 << 20);
  for (std::byte& b : data) b = static_cast<std::byte>(rng.next());
  int cases = 0;
  for (const int64_t bytes : {0, 1, 4096, 262144, 262145, 1 << 20, 5 << 20}) {
    const uint64_t wanted = chunk_checksum(data.data(), bytes, 3, 9, 1);
    for (const int threads : {2, 3, 8}) EXPECT_EQ(chunk_checksum(data.data(), bytes, 3, 9, threads), wanted), ++cases;
    EXPECT_NE(chunk_checksum(data.data(), bytes, 4, 9), wanted);
    EXPECT_NE(chunk_checksum(data.data(), bytes, 3, 10), wanted);
#ifdef LOWTIDE_CHECKSUM_AVX2
    if (__builtin_cpu_supports("avx2")) {
      EXPECT_EQ(checksum::hash_avx2(data.data(), static_cast<size_t>(bytes), 7),
                checksum::hash_baseline(data.data(), static_cast<size_t>(bytes), 7));
      ++cases;
    }
#endif
  }
  figure("{} comparisons, 0 differ", cases);
}

}  // namespace
}  // namespace lowtide::testing
