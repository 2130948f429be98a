// Fails the test if work queued on a fake device could run in two orders with two results.
#pragma once

#include <gtest/gtest.h>

#include "support/fake/fake_backend.h"

namespace lowtide::testing {

inline void expect_no_race(fake::FakeBackend& backend) {
  for (const auto& race : backend.fake().race_checker().races()) ADD_FAILURE() << to_string(race);
}

}  // namespace lowtide::testing
