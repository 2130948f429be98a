#include <gtest/gtest.h>

TEST(EmulatedCuda, IsHere) {
  GTEST_SKIP() << "no Boost.Context, which the emulated CUDA needs (Debian or Ubuntu: apt-get install "
                  "libboost-context-dev)";
}
