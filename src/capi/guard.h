// Where exceptions become status codes: every function of the C interface runs its body through guarded().
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <exception>
#include <new>
#include <type_traits>

#include "core/error.h"
#include "lowtide/lowtide.h"

namespace lowtide::capi {

// Keeps what lt_last_error() and lt_last_os_error() say. Never allocates on the way out when memory is short: the text
// is then cut.
lt_status failed(lt_status status, const char* text, int os_error = 0) noexcept;

template <class Fn>
lt_status guarded(Fn&& body) noexcept {
  try {
    body();
    return LT_OK;
  } catch (const Error& e) {
    return failed(static_cast<lt_status>(e.kind()), e.what(), e.os_error());
  } catch (const std::bad_alloc&) {
    return failed(LT_OUT_OF_MEMORY, "out of host memory");
  } catch (const std::exception& e) {
    return failed(LT_INTERNAL, e.what());
  } catch (...) {
    return failed(LT_INTERNAL, "unknown exception");
  }
}

inline void require(const void* pointer, const char* name) { LT_REQUIRE(pointer, "got NULL for %s", name); }

inline void check_struct_size(int64_t bytes) {
  // No version of a struct ends within a pointer: half of one would be followed.
  constexpr auto kUnit = static_cast<int64_t>(sizeof(int64_t));
  LT_REQUIRE(bytes >= kUnit && bytes <= 4096 && bytes % kUnit == 0,
             "got struct_size=%lld in a struct; start from its _INIT macro", static_cast<long long>(bytes));
}

// Options of an older or newer caller: copies what both know, keeps the defaults of the rest.
template <class Options>
Options options_from(const Options* given, const Options& defaults) {
  Options out = defaults;
  if (!given) return out;
  check_struct_size(given->struct_size);
  std::memcpy(&out, given, std::min(sizeof out, static_cast<size_t>(given->struct_size)));
  return out;
}

// Copies as much as the caller's version of the struct has room for.
template <class Report>
void copy_out(const std::type_identity_t<Report>& all, Report* out) {
  std::memcpy(out, &all, std::min(sizeof all, static_cast<size_t>(out->struct_size)));
}

}  // namespace lowtide::capi
