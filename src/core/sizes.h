// Numbers of bytes as people write and read them.
#pragma once

#include <cstdint>
#include <string>

namespace lowtide {

// "4096", "512KiB", "16 MiB", "1.5 GB", "2TB": a decimal number without exponent, then a unit, optionally separated by
// blanks, in upper or lower case. kB, MB, GB, TB, PB, EB are powers of 1000; KiB ... EiB powers of 1024; B or no unit
// means bytes. Computed exactly, in integers, and rounded down to whole bytes, so a budget never exceeds the text.
// Throws kInvalidArgument on anything else: no number, a sign, a fraction of a byte, an unknown unit (including "M",
// which is ambiguous), text after the unit, 2^63 bytes and more.
int64_t parse_bytes(const std::string& text);

// "0 B", "1023 B", "1.50 GiB": two decimals, units of 1024, the same in every locale. For people: if the exact number
// matters, print it as well.
std::string format_bytes(int64_t bytes);

}  // namespace lowtide
