// The messages of expected errors.
#pragma once

#include <gtest/gtest.h>

#include <string>

#include "lowtide/error.h"

namespace lowtide::testing {

// The message of the error that act() throws, which is of this kind.
template <class Fn>
std::string message_of(ErrorKind kind, Fn&& act) {
  try {
    act();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), kind) << error.what();
    return error.what();
  }
  ADD_FAILURE() << "no error";
  return "";
}

}  // namespace lowtide::testing
