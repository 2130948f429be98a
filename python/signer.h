// The place where signs of Python tensors are computed.
#pragma once

#include <memory>
#include <string>

#include "backend/backend.h"

namespace lowtide::python {

// The CPU backend that the process shares, or one device. A device's is for one thread at a time.
class SignPlace {
 public:
  // backend, target, stream: as open_backend() takes them.
  SignPlace(const std::string& backend, void* stream, const std::string& target);

  Backend& backend() const { return *backend_; }
  std::shared_ptr<Backend> share() const { return backend_; }

 private:
  std::shared_ptr<Backend> backend_;
};

}  // namespace lowtide::python
