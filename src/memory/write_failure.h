// Why state could not be written to disk. Nothing is lost by it, so work goes on, and the error comes at its end.
#pragma once

#include <cstdint>
#include <string>

#include "core/error.h"

namespace lowtide {

// The kIo error of a call that was carried out to its end: what could not be written is kept in RAM.
class KeptInMemory : public Error {
 public:
  using Error::Error;
};

struct WriteFailure {
  std::string text;  // of the first failure; "": none
  int os_error = 0;

  // In a handler: takes over what was thrown, unless there is a failure already. Needs no memory.
  void note() noexcept;
  // Throws KeptInMemory, and forgets it, if there is a failure. `done`: what is complete all the same, e.g. "step".
  void raise(const char* done, int64_t kept_bytes);
};

}  // namespace lowtide
