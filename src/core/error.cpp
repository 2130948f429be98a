#include "core/error.h"

#include <cstdarg>
#include <cstdio>
#include <system_error>

namespace lowtide {
namespace {

std::string vformat(const char* pattern, va_list args) {
  va_list again;
  va_copy(again, args);
  const int length = std::vsnprintf(nullptr, 0, pattern, again);
  va_end(again);
  std::string text(static_cast<size_t>(length > 0 ? length : 0), '\0');
  std::vsnprintf(text.data(), text.size() + 1, pattern, args);
  return text;
}

// Escapes control characters (ASCII, and C1 in UTF-8): messages quote names from files and go to terminals.
std::string printable(const std::string& text) {
  std::string shown;
  bool may_be_c1 = false;
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    const bool control = byte < 0x20 || byte == 0x7f || (may_be_c1 && byte >= 0x80 && byte < 0xa0);
    if (control && byte >= 0x80) shown.pop_back();  // the first byte of the C1 character
    shown += control ? format("\\x%02x", static_cast<unsigned>(byte)) : std::string(1, c);
    may_be_c1 = byte == 0xc2;
  }
  return shown;
}

}  // namespace

std::string format(const char* pattern, ...) {
  va_list args;
  va_start(args, pattern);
  std::string text = vformat(pattern, args);
  va_end(args);
  return text;
}

void fail(ErrorKind kind, const char* pattern, ...) {
  va_list args;
  va_start(args, pattern);
  const std::string text = printable(vformat(pattern, args));
  va_end(args);
  throw Error(kind, text);
}

void fail_io(int os_error, const char* pattern, ...) {
  va_list args;
  va_start(args, pattern);
  std::string text = printable(vformat(pattern, args));
  va_end(args);
  if (os_error) text = format("%s: %s", text.c_str(), std::generic_category().message(os_error).c_str());
  throw Error(ErrorKind::kIo, text, os_error);
}

}  // namespace lowtide
