// Turns exceptions into status codes: every function of the C interface runs its body through guarded() or on(). Also
// reads and fills structs of callers that were compiled against other versions. Any thread may use it; nothing owns
// memory.
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

// Stores the text and number for this thread's lt_last_error() and lt_last_os_error(), and returns `status`. If memory
// is short, the text is dropped.
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

// Returns the pointer. Throws kInvalidArgument if it is NULL.
template <class T>
T* require(T* pointer, const char* name) {
  LT_REQUIRE(pointer, "got NULL for %s", name);
  return pointer;
}

inline void require_bytes(int64_t bytes, const char* name = "bytes") {
  LT_REQUIRE(bytes >= 0, "got %s=%lld, wanted 0 or more", name, ll(bytes));
}

inline bool flag(int64_t value, const char* name) {
  LT_REQUIRE(value == 0 || value == 1, "got %s=%lld, wanted 0 or 1", name, ll(value));
  return value == 1;
}

// Runs body(*handle) in guarded().
template <class Handle, class Fn>
lt_status on(Handle* handle, const char* name, Fn&& body) noexcept {
  return guarded([&] { body(*require(handle, name)); });
}

inline void check_struct_size(int64_t bytes) {
  // No version of a struct ends inside a pointer, because half of a pointer cannot be used.
  constexpr auto kUnit = static_cast<int64_t>(sizeof(int64_t));
  LT_REQUIRE(bytes >= kUnit && bytes <= 4096 && bytes % kUnit == 0,
             "got struct_size=%lld in a struct; start from its _INIT macro", ll(bytes));
}

// Converts the struct of an older or newer caller: takes the fields that both versions have, and defaults for the
// others. NULL gives the defaults.
template <class Struct>
Struct struct_from(const Struct* given, const Struct& defaults) {
  Struct out = defaults;
  if (!given) return out;
  check_struct_size(given->struct_size);
  std::memcpy(&out, given, std::min(sizeof out, static_cast<size_t>(given->struct_size)));
  return out;
}

// Fills the fields that the caller's version of the struct has. Keeps its struct_size, which has been checked.
template <class Report>
void copy_out(const std::type_identity_t<Report>& all, Report* out) {
  const int64_t bytes = out->struct_size;
  std::memcpy(out, &all, std::min(sizeof all, static_cast<size_t>(bytes)));
  out->struct_size = bytes;
}

}  // namespace lowtide::capi
