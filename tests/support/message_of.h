// The messages of expected errors.
#pragma once

#include "support/test.h"

namespace lowtide::testing {

template <class Fn>
std::string message_of(ErrorKind kind, Fn&& act) {
  return refusal(act, kind);
}

}  // namespace lowtide::testing
