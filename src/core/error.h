// Throws errors with formatted messages, which say what was given, what was wanted and what to do.
#pragma once

#include <cstdint>
#include <string>

#include "lowtide/error.h"

namespace lowtide {

// Converts a number to the type that %lld takes.
inline constexpr long long ll(int64_t n) { return n; }

[[gnu::format(printf, 1, 2)]] std::string format(const char* pattern, ...);

[[noreturn, gnu::format(printf, 2, 3)]] void fail(ErrorKind kind, const char* pattern, ...);

// Throws kIo; appends the system's text for os_error (an errno, 0 if there is none).
[[noreturn, gnu::format(printf, 2, 3)]] void fail_io(int os_error, const char* pattern, ...);

// LT_REQUIRE(condition, "got n=%lld, wanted ...", n): throws kInvalidArgument if the condition is false.
#define LT_REQUIRE(condition, ...)                                          \
  do {                                                                      \
    if (!(condition)) [[unlikely]]                                          \
      ::lowtide::fail(::lowtide::ErrorKind::kInvalidArgument, __VA_ARGS__); \
  } while (false)

}  // namespace lowtide
