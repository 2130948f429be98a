// Stands in for tests that are not built, so that they are seen to be missing.
#include <gtest/gtest.h>

TEST(Tests, AreNotBuilt) { GTEST_SKIP() << LT_SKIP_REASON; }
