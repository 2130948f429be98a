#include "memory/write_failure.h"

#include <cerrno>

#include "core/sizes.h"

namespace lowtide {

void raise_kept(std::exception_ptr failure, const char* done, int64_t kept_bytes) {
  if (!failure) return;
  std::string reason = "out of memory";
  int os_error = ENOMEM;
  try {
    std::rethrow_exception(failure);
  } catch (const Error& error) {
    reason = error.what();
    os_error = error.os_error();
  } catch (...) {  // std::bad_alloc
  }
  throw KeptInMemory(ErrorKind::kIo,
                     format("%s. The %s is complete and nothing is lost: what could not be written (%s) is kept in "
                            "RAM, and the next step tries again",
                            reason.c_str(), done, format_bytes(kept_bytes).c_str()),
                     os_error);
}

}  // namespace lowtide
