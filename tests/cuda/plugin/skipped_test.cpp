// Stands for the tests of the built CUDA plug-in where it is not built: says why.
#include <gtest/gtest.h>

TEST(CudaPlugin, IsNotBuilt) { GTEST_SKIP() << LOWTIDE_CUDA_REASON; }
