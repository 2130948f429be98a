// Every C function runs inside this: one caller at a time, and exceptions become the thread's last error.
#pragma once

#include <exception>
#include <mutex>

namespace lowtide::bnb {

std::mutex& calls();
// name: of the function that failed.
void note_error(const char* name, const char* what) noexcept;
const char* last_error() noexcept;
void clear_error() noexcept;

// f(); `failed` if it throws.
template <class T, class Fn>
T guarded(const char* name, T failed, Fn&& f) noexcept {
  try {
    const std::lock_guard lock(calls());
    return f();
  } catch (const std::exception& error) {
    note_error(name, error.what());
  }
  return failed;
}

}  // namespace lowtide::bnb
