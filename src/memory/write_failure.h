// How a disk that refuses a write is reported. Nothing is lost by it: what could not be written stays in RAM, work goes
// on to its end, and the error comes then. Until it is raised, a failure is the std::exception_ptr of the first write
// that failed, nullptr if none has: taking one needs no memory.
#pragma once

#include <cstdint>
#include <exception>

#include "core/error.h"

namespace lowtide {

// The kIo error of a call that was carried out to its end: what could not be written is kept in RAM.
class KeptInMemory : public Error {
 public:
  using Error::Error;
};

// Throws KeptInMemory if `failure` is one. `done`: the call that is complete all the same, e.g. "step".
void raise_kept(std::exception_ptr failure, const char* done, int64_t kept_bytes);

}  // namespace lowtide
