// Errors of the C++ interface: one exception type, whose kind maps to a Python exception and a C status.
#pragma once

#if __cplusplus <= 201703L
#error "Lowtide's C++ interface needs C++20 (-std=c++20); older C++ can use the C interface, lowtide/lowtide.h"
#endif

#include <stdexcept>
#include <string>

#include "lowtide/export.h"

namespace lowtide {

// The same values as lt_status in lowtide.h (a test compares them); never renumber.
enum class ErrorKind : int {
  kInvalidArgument = 1,  // the caller's value is wrong; nothing was changed          Python: ValueError
  kOutOfMemory = 10,     // not enough host or device memory; nothing changed         Python: MemoryError
  kUnsupported = 20,     // valid, but this build or machine cannot do it             Python: NotImplementedError
  kIo = 30,              // a file, disk or transport failed; os_error() says how     Python: OSError with errno
  kDeviceLost = 40,      // the device is unusable in this process                    Python: RuntimeError
  kInternal = 90,        // a broken invariant: a bug of this library                 Python: RuntimeError
};

// Messages say what the call got, what it wanted and, if it helps, what to do.
class LT_API Error : public std::runtime_error {
 public:
  Error(ErrorKind kind, const std::string& message, int os_error = 0)
      : std::runtime_error(message), kind_(kind), os_error_(os_error) {}
  ErrorKind kind() const noexcept { return kind_; }
  int os_error() const noexcept { return os_error_; }  // errno of a kIo error; 0 if the system gave none

 private:
  ErrorKind kind_;
  int os_error_;
};

}  // namespace lowtide
