// Stands in for the tests of the SYCL backend where it is not built, so that they are seen to be missing.
#include <gtest/gtest.h>

TEST(Sycl, IsNotBuilt) { GTEST_SKIP() << LOWTIDE_SYCL_REASON; }
