#include "bnb/guard.h"

#include <new>
#include <string>

namespace lowtide::bnb {
namespace {

thread_local std::string error_text;

}  // namespace

std::mutex& calls() {
  static std::mutex mutex;
  return mutex;
}

void note_error(const char* name, const char* what) noexcept {
  try {
    error_text = std::string(name) + ": " + what;
  } catch (const std::bad_alloc&) {
    error_text.clear();
    error_text += "no memory";  // fits without an allocation
  }
}

const char* last_error() noexcept { return error_text.c_str(); }
void clear_error() noexcept { error_text.clear(); }

}  // namespace lowtide::bnb
