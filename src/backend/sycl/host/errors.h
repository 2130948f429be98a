// SYCL's exceptions as ours: nothing of the runtime's leaves the plug-in.
#pragma once

#include <sycl/sycl.hpp>

#include <exception>
#include <new>

#include "core/error.h"

namespace lowtide::sycl_host {

inline ErrorKind kind_of(const sycl::exception& error) {
  if (error.code() == sycl::errc::memory_allocation) return ErrorKind::kOutOfMemory;
  if (error.code() == sycl::errc::feature_not_supported || error.code() == sycl::errc::kernel_not_supported ||
      error.code() == sycl::errc::build)
    return ErrorKind::kUnsupported;
  return ErrorKind::kInternal;
}

// Runs f(); `doing` begins the messages of what it throws.
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

}  // namespace lowtide::sycl_host
