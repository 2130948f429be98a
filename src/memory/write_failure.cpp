#include "memory/write_failure.h"

#include <cerrno>
#include <string_view>
#include <utility>

#include "core/error.h"
#include "core/sizes.h"

namespace lowtide {

void WriteFailure::note() noexcept {
  // Texts of their own are short enough to need no memory.
  constexpr std::string_view kNoMemory = "out of memory", kFailed = "write failed";
  if (!text.empty()) return;
  try {
    throw;
  } catch (const Error& error) {
    os_error = error.os_error();
    try {
      text = error.what();
    } catch (...) {
      text = kFailed;
    }
  } catch (...) {
    os_error = ENOMEM;
    text = kNoMemory;
  }
}

void WriteFailure::raise(const char* done, int64_t kept_bytes) {
  if (text.empty()) return;
  const WriteFailure failure = std::exchange(*this, {});
  throw KeptInMemory(
      ErrorKind::kIo,
      format("%s. The %s is complete and nothing is lost: what could not be written (%s) is kept in RAM, and "
             "the next step tries again",
             failure.text.c_str(), done, format_bytes(kept_bytes).c_str()),
      failure.os_error);
}

}  // namespace lowtide
