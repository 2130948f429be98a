// Tests the shapes of launches for the least and most work, and the layout of structs that go to the device.
#include "backend/cuda/device/shape.h"

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdio>
#include <type_traits>

namespace lowtide::cuda_kernels {
namespace {

// Kernels load whole pointers and numbers, and a table of items is copied as bytes.
static_assert(std::is_trivially_copyable_v<kernels::DeviceItem> && alignof(kernels::DeviceItem) == 8);
static_assert(sizeof(kernels::DeviceItem) % 8 == 0 && offsetof(kernels::DeviceItem, args) % 8 == 0);
static_assert(sizeof(ReplayState) == 12 && offsetof(ReplayState, missed) == 8);
static_assert(kernels::kGroupSize == 256 && kThreads % 32 == 0);

TEST(CudaShape, GridsCoverTheWorkAndAreResident) {
  int64_t checked = 0;
  for (const int64_t units :
       {int64_t{1}, int64_t{7}, int64_t{8}, int64_t{9}, int64_t{4096}, int64_t{1} << 40, INT64_MAX})
    for (const int64_t at_once : {int64_t{1}, int64_t{8}, int64_t{256}})
      for (const int processors : {0, 1, 132})
        for (const int resident : {0, 1, 8}) {
          const int64_t grid = grid_for(units, at_once, processors, resident);
          const int64_t most = int64_t{std::max(processors, 1)} * std::max(resident, 1);
          EXPECT_GE(grid, 1);
          EXPECT_LE(grid, most);
          // There are fewer blocks than can be resident only if they are enough.
          EXPECT_TRUE(grid == most || grid * at_once >= units);
          // No block is idle.
          EXPECT_LT((grid - 1) * at_once, units);
          ++checked;
        }
  std::printf("%lld launches\n", static_cast<long long>(checked));
}

TEST(CudaShape, TilesCoverBlocks) {
  EXPECT_EQ(tiles_of(0), 0);
  EXPECT_EQ(tiles_of(1), 1);
  EXPECT_EQ(tiles_of(kTileBlocks), 1);
  EXPECT_EQ(tiles_of(kTileBlocks + 1), 2);
  EXPECT_EQ(tiles_of(INT64_MAX), INT64_MAX / kTileBlocks + 1);
}

}  // namespace
}  // namespace lowtide::cuda_kernels
