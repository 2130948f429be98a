// Sizes are read exactly or refused with a reason; printed sizes can be read again.
#include "core/sizes.h"

#include "support/test.h"

namespace lowtide::testing {
namespace {

constexpr int64_t kMax = std::numeric_limits<int64_t>::max();

TEST(ParseBytes, ReadsNumbersExactly) {
  struct Case {
    const char* text;
    int64_t bytes;
  };
  const Case cases[] = {{"0", 0},
                        {"4096", 4096},
                        {"007", 7},
                        {"12 B", 12},
                        {"512KiB", 512 << 10},
                        {"16MiB", 16 << 20},
                        {"16mib", 16 << 20},
                        {"16MIB", 16 << 20},
                        {"2GiB", int64_t{2} << 30},
                        {"2 \t GiB", int64_t{2} << 30},
                        {"1.5 GB", 1500000000},
                        {"1.5GiB", int64_t{3} << 29},
                        {"3kB", 3000},
                        {"3KB", 3000},
                        {"7mb", 7000000},
                        {"2TB", 2000000000000},
                        {"2TiB", int64_t{2} << 40},
                        {"5PiB", int64_t{5} << 50},
                        {"0.1GB", 100000000},
                        {"0.9999999999999999999999999999999999KiB", 1023},  // rounded down, any number of digits
                        {"1.0000000000000000000000000000000001KiB", 1024},
                        {"0.000KiB", 0},
                        {"9007199254740993", 9007199254740993},  // 2^53 + 1: a double would lose the last bit
                        {"9223372036854775807", kMax},
                        {"7.9999999999999999999EiB", kMax},  // 2^63 less a fraction
                        {"7.99 EiB", 9211842821808707338}};
  for (const Case& c : cases) EXPECT_EQ(parse_bytes(c.text), c.bytes) << c.text;
  figure("sizes read exactly: {}", std::size(cases));
}

TEST(ParseBytes, RefusesEverythingElse) {
  std::vector<std::string> cases = {"",         " ",      " 4096",    "4096 ",  "-1",   "+1",    "2GB ?", "1e400GiB",
                                    "1e3",      "NaN",    "nan",      "inf",    "0x10", ".5GiB", "5.GiB", "1.5",
                                    "1.5 B",    "1,5GiB", "1.2.3GiB", "16M",    "16 k", "GiB",   "16bi",  "50%",
                                    "1 000MiB", "16MiBs", "16 M iB",  "16KiBB", "1ZiB", "8EiB",  "9.3EB"};
  cases.insert(cases.end(), {"١MiB", "16ΜiB", "9223372036854775808", "18446744073709551616",
                             "99999999999999999999999999999999999999", std::string("16\0MiB", 6),
                             std::string("16MiB\0", 6), std::string(100000, '9')});
  for (const std::string& text : cases) {
    const std::string what = refusal([&] { parse_bytes(text); });
    expect_in("16MiB", what);  // the message says what to write
    EXPECT_LT(what.size(), 300u);
    if (text.size() < 40 && text.find('\0') == std::string::npos)
      expect_in('"' + text + '"', what);  // and quotes the input
  }
  figure("sizes refused: {}", std::size(cases));
}

// The reference computes in 128 bits, with the fraction as digits over a power of ten.
TEST(ParseBytes, AgreesWithWideArithmetic) {
  Rng rng = seeded("random sizes", 20261);
  const char* units[] = {"B",  "kB",  "MB",  "GB",  "TB",  "PB",  "EB",
                         "iB", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};  // iB stands for no unit
  __extension__ using Wide = unsigned __int128;
  int read = 0, refused = 0;
  for (int i = 0; i < 20000; ++i) {
    const size_t u = static_cast<size_t>(rng.below(14));
    Wide unit = 1;
    for (size_t p = 0; p < u % 7; ++p) unit *= u < 7 ? 1000 : 1024;
    const uint64_t whole = rng.next() >> rng.between(0, 63);
    int64_t fraction = 0, scale = 1;
    std::string text = std::to_string(whole);
    if (u % 7 != 0 && rng.chance(0.7)) {
      text += '.';
      for (int64_t d = rng.between(1, 15); d > 0; --d) {
        const int64_t digit = rng.below(10);
        text += static_cast<char>('0' + digit);
        fraction = fraction * 10 + digit;
        scale *= 10;
      }
    }
    if (u != 7) text += (rng.chance(0.5) ? " " : "") + std::string(units[u]);
    const Wide wanted =
        Wide{whole} * unit + Wide{static_cast<uint64_t>(fraction)} * unit / Wide{static_cast<uint64_t>(scale)};
    if (wanted > Wide{static_cast<uint64_t>(kMax)}) {
      EXPECT_THROW(parse_bytes(text), Error) << text;
      ++refused;
    } else {
      EXPECT_EQ(parse_bytes(text), static_cast<int64_t>(wanted)) << text;
      ++read;
    }
  }
  figure("random sizes: {} read exactly, {} refused as too large", read, refused);
  EXPECT_GT(read, 5000);
  EXPECT_GT(refused, 1000);
}

TEST(FormatBytes, IsForPeople) {
  EXPECT_EQ(format_bytes(0), "0 B");
  EXPECT_EQ(format_bytes(1023), "1023 B");
  EXPECT_EQ(format_bytes(1024), "1.00 KiB");
  EXPECT_EQ(format_bytes(int64_t{3} << 29), "1.50 GiB");
  EXPECT_EQ(format_bytes((1 << 20) - 1), "1.00 MiB");  // not 1024.00 KiB
  EXPECT_EQ(format_bytes(kMax), "8.00 EiB");
  EXPECT_EQ(format_bytes(-1), "-1 B");
  EXPECT_EQ(format_bytes(std::numeric_limits<int64_t>::min()), "-8.00 EiB");
}

TEST(FormatBytes, IsReadAgainWithinItsTwoDecimals) {
  Rng rng = seeded("sizes printed and read", 20262);
  int printed = 0;
  for (int i = 0; i < 20000; ++i, ++printed) {
    const int64_t bytes = static_cast<int64_t>(rng.next() >> rng.between(2, 63));
    const std::string text = format_bytes(bytes);
    const double off = static_cast<double>(parse_bytes(text) - bytes);
    if (bytes < 1024) {
      EXPECT_EQ(off, 0) << text;
    } else {  // half of the last decimal plus the byte lost to rounding down
      EXPECT_LE(off < 0 ? -off : off, 1 + 0.00501 * static_cast<double>(bytes)) << text << " for " << bytes;
    }
  }
  figure("{} sizes printed and read again within half of the last decimal", printed);
}

}  // namespace
}  // namespace lowtide::testing
