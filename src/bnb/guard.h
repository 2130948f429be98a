// Every C function runs inside this: one caller at a time, and exceptions become the thread's last error.
#pragma once

#include <exception>
#include <mutex>
#include <new>
#include <string>

namespace lowtide::bnb {

inline std::mutex calls;
inline thread_local std::string last_error;

// name: of the function that failed.
inline void note_error(const char* name, const char* what) noexcept {
  try {
    last_error = std::string(name) + ": " + what;
  } catch (const std::bad_alloc&) {
    last_error.clear();
    last_error += "no memory";  // fits without an allocation
  }
}

// f(); `failed` if it throws.
template <class T, class Fn>
T guarded(const char* name, T failed, Fn&& f) noexcept {
  try {
    const std::lock_guard lock(calls);
    return f();
  } catch (const std::exception& error) {
    note_error(name, error.what());
  }
  return failed;
}

}  // namespace lowtide::bnb
