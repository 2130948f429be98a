// Stands in for the tests on the emulated CUDA where it is not built, so that they are seen to be missing.
#include <gtest/gtest.h>

TEST(EmulatedCuda, IsHere) { GTEST_SKIP() << LOWTIDE_EMULATOR_REASON; }
