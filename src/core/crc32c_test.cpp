// CRC-32C against the vectors of RFC 3720 (B.4), and its two forms against each other.
#include "core/crc32c.h"

#include <gtest/gtest.h>

#include <cstdio>
#include <cstring>
#include <vector>

#include "support/random.h"

namespace lowtide {
namespace {

TEST(Crc32c, StandardVectors) {
  std::vector<unsigned char> zeros(32, 0), ones(32, 0xff), up(32), down(32);
  for (unsigned i = 0; i < 32; ++i) up[i] = static_cast<unsigned char>(i), down[i] = static_cast<unsigned char>(31 - i);
  const unsigned char read10[48] = {0x01, 0xc0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,    0, 0, 0, 0,
                                    0x14, 0,    0, 0, 0, 0, 4, 0, 0, 0, 0, 0x14, 0, 0, 0, 0x18,
                                    0x28, 0,    0, 0, 0, 0, 0, 0, 2, 0, 0, 0,    0, 0, 0, 0};
  const struct {
    const void* data;
    size_t bytes;
    uint32_t crc;
  } vectors[] = {{"", 0, 0},
                 {"123456789", 9, 0xe3069283u},
                 {zeros.data(), 32, 0x8a9136aau},
                 {ones.data(), 32, 0x62a8ab43u},
                 {up.data(), 32, 0x46dd794eu},
                 {down.data(), 32, 0x113fdb5cu},
                 {read10, 48, 0xd9963a56u}};
  for (const auto& v : vectors) {
    EXPECT_EQ(crc32c(v.data, v.bytes), v.crc) << v.bytes;
    EXPECT_EQ(crc32c_by_table(v.data, v.bytes), v.crc) << v.bytes;
  }
  std::printf("[ checks ] %zu standard vectors, 2 forms\n", std::size(vectors));
}

TEST(Crc32c, FormsAgreeAtAnyPlaceAndInPieces) {
  testing::Rng rng = testing::seeded("CRC-32C", 20261121);
  std::vector<unsigned char> data(5000);
  for (auto& byte : data) byte = static_cast<unsigned char>(rng.next());
  int64_t cases = 0;
  for (; cases < 2000; ++cases) {
    const auto first = static_cast<size_t>(rng.below(64)), bytes = static_cast<size_t>(rng.below(4900));
    const auto cut = static_cast<size_t>(rng.between(0, static_cast<int64_t>(bytes)));
    const uint32_t whole = crc32c(data.data() + first, bytes);
    ASSERT_EQ(whole, crc32c_by_table(data.data() + first, bytes));
    ASSERT_EQ(whole, crc32c(data.data() + first + cut, bytes - cut, crc32c(data.data() + first, cut)));
    if (bytes == 0) continue;
    data[first + static_cast<size_t>(rng.below(static_cast<int64_t>(bytes)))] ^=
        static_cast<unsigned char>(1 << rng.below(8));
    ASSERT_NE(whole, crc32c(data.data() + first, bytes)) << "a flipped bit went unseen";
  }
  std::printf("[ checks ] %lld pieces, each whole, cut, and with a bit flipped\n", static_cast<long long>(cases));
}

}  // namespace
}  // namespace lowtide
