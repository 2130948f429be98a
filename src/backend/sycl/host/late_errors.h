// Errors of work that SYCL reports after it was queued: kept until a call can throw them.
#pragma once

#include <sycl/sycl.hpp>

#include <exception>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include "core/error.h"

namespace lowtide::sycl_host {

// Errors that the runtime reports later, of queues of the backend's own. (Of a caller's queue, its own handler hears.)
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
