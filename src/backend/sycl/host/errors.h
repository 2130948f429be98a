// Translates SYCL's exceptions, so that no exception of the runtime leaves the plug-in.
#pragma once

#include <sycl/sycl.hpp>

#include <exception>
#include <memory>
#include <mutex>
#include <new>
#include <string>
#include <utility>

#include "core/error.h"

namespace lowtide::sycl_host {

inline ErrorKind kind_of(const sycl::exception& error) {
  if (error.code() == sycl::errc::memory_allocation) return ErrorKind::kOutOfMemory;
  if (error.code() == sycl::errc::feature_not_supported || error.code() == sycl::errc::kernel_not_supported ||
      error.code() == sycl::errc::build)
    return ErrorKind::kUnsupported;
  return ErrorKind::kInternal;
}

// Runs f(); `doing` begins the messages of its exceptions.
template <class Fn>
auto guarded(const char* doing, Fn&& f) -> decltype(f()) {
  try {
    return f();
  } catch (const sycl::exception& error) {
    fail(kind_of(error), "SYCL, %s: %s", doing, error.what());
  } catch (const std::bad_alloc&) {
    fail(ErrorKind::kOutOfMemory, "SYCL, %s: no host memory", doing);
  } catch (const Error&) {
    throw;
  } catch (const std::exception& error) {
    fail(ErrorKind::kInternal, "SYCL, %s: %s", doing, error.what());
  }
}

// Errors of work on the backend's own queues that the runtime reports later. They are kept until a call can throw them.
// (A caller's queue reports to the caller's handler.)
struct LateErrors {
  std::mutex mutex;
  std::string first;

  void throw_any() {
    const std::lock_guard lock(mutex);
    if (!first.empty()) fail(ErrorKind::kInternal, "SYCL: %s", std::exchange(first, {}).c_str());
  }
};

inline sycl::async_handler handler_of(const std::shared_ptr<LateErrors>& late) {
  return [late](const sycl::exception_list& errors) {
    const std::lock_guard lock(late->mutex);
    for (const std::exception_ptr& error : errors) {
      try {
        std::rethrow_exception(error);
      } catch (const std::exception& e) {
        if (late->first.empty()) late->first = e.what();
      } catch (...) {
        if (late->first.empty()) late->first = "unknown error";
      }
    }
  };
}

}  // namespace lowtide::sycl_host
