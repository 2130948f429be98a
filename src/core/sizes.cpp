#include "core/sizes.h"

#include <algorithm>
#include <charconv>
#include <limits>
#include <string_view>

#include "core/error.h"

namespace lowtide {
namespace {

constexpr std::string_view kPrefixes = "kmgtpe";

// <cctype> depends on the locale; a size must not.
bool is_digit(char c) { return c >= '0' && c <= '9'; }
char lower(char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; }

// Bytes of a unit, 0 for an unknown name.
uint64_t unit_bytes(std::string_view name) {
  std::string unit;
  for (const char c : name) unit += lower(c);
  if (unit.empty() || unit == "b") return 1;
  const size_t power = kPrefixes.find(unit[0]);
  if (power == std::string_view::npos) return 0;
  const std::string_view rest = std::string_view(unit).substr(1);
  if (rest != "b" && rest != "ib") return 0;
  uint64_t bytes = 1;
  for (size_t i = 0; i <= power; ++i) bytes *= rest == "b" ? 1000 : 1024;
  return bytes;
}

[[noreturn]] void refuse(const std::string& text, const char* why) {
  fail(ErrorKind::kInvalidArgument, "got \"%.64s\" as a number of bytes: %s; write it as 4096, 512KiB, 16MiB or 1.5GB",
       text.c_str(), why);
}

}  // namespace

int64_t parse_bytes(const std::string& text) {
  const std::string_view all = text;
  const size_t whole_end = static_cast<size_t>(std::find_if_not(all.begin(), all.end(), is_digit) - all.begin());
  const std::string_view whole = all.substr(0, whole_end);
  if (whole.empty()) refuse(text, "it does not begin with a digit");
  std::string_view rest = all.substr(whole_end), fraction;
  if (!rest.empty() && rest[0] == '.') {
    rest.remove_prefix(1);
    const size_t end = static_cast<size_t>(std::find_if_not(rest.begin(), rest.end(), is_digit) - rest.begin());
    fraction = rest.substr(0, end);
    if (fraction.empty()) refuse(text, "no digit follows the point");
    rest.remove_prefix(end);
  }
  const size_t blanks = std::min(rest.find_first_not_of(" \t"), rest.size());
  if (blanks > 0 && blanks == rest.size()) refuse(text, "blanks follow the number and no unit follows them");
  const uint64_t unit = unit_bytes(rest.substr(blanks));
  if (unit == 0) refuse(text, "the text after the number is not a unit (B, kB ... EB, KiB ... EiB)");
  if (unit == 1 && !fraction.empty()) refuse(text, "there is no fraction of a byte");

  // From the last digit on, each partial sum rounded down: intermediate rounding does not change the result, and no sum
  // exceeds 9 EiB + 1 EiB.
  uint64_t part = 0;
  for (size_t i = fraction.size(); i-- > 0;) part = (part + static_cast<uint64_t>(fraction[i] - '0') * unit) / 10;
  uint64_t bytes = 0;
  const auto read = std::from_chars(whole.data(), whole.data() + whole.size(), bytes);
  if (read.ec != std::errc() || __builtin_mul_overflow(bytes, unit, &bytes) ||
      __builtin_add_overflow(bytes, part, &bytes) ||
      bytes > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) {
    refuse(text, "it is more than 2^63 - 1 bytes");
  }
  return static_cast<int64_t>(bytes);
}

std::string format_bytes(int64_t bytes) {
  __extension__ using Wide = unsigned __int128;
  const uint64_t magnitude = bytes < 0 ? 0 - static_cast<uint64_t>(bytes) : static_cast<uint64_t>(bytes);
  if (magnitude < 1024) return std::to_string(bytes) + " B";
  // Hundredths of a unit, a tie to the even one. 1023.995 and more would print as 1024.00.
  int64_t hundredths = 1024 * 100;
  size_t power = 0;
  for (; hundredths >= 1024 * 100 && power < kPrefixes.size(); ++power) {
    const Wide exact = Wide{magnitude} * 100;
    const size_t bits = 10 * (power + 1);
    hundredths = static_cast<int64_t>((exact + (Wide{1} << (bits - 1)) - 1 + ((exact >> bits) & 1)) >> bits);
  }
  return format("%s%lld.%02lld %ciB", bytes < 0 ? "-" : "", ll(hundredths / 100), ll(hundredths % 100),
                kPrefixes[power - 1] - 'a' + 'A');
}

}  // namespace lowtide
