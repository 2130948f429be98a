// Tests which launches steps become, and what kernels find at their addresses.
#include "backend/kernels/batch.h"

#include "support/test.h"

namespace lowtide::kernels {
namespace {

// Steps of one-row parameters, each with its codes.
struct Steps {
  struct Spec {
    int rule, codec;
    DType param, grad;
    int64_t numel;
    bool ballot = false;
  };

  explicit Steps(const std::vector<Spec>& specs) : layouts(specs.size()), items(specs.size()) {
    for (size_t i = 0; i < specs.size(); ++i) {
      const Spec& spec = specs[i];
      layouts[i] = Layout::make({&specs[i].numel, 1}, {});
      StepItem& item = items[i];
      item.param = item.codes[0] = reinterpret_cast<void*>(1 << 20);
      item.grad = item.param;
      item.param_layout = item.grad_layout = &layouts[i];
      item.param_dtype = spec.param, item.grad_dtype = spec.grad;
      item.rule = spec.rule, item.codec = spec.codec;
      item.ballot = spec.ballot ? &target : nullptr;
    }
  }

  BallotTarget target;
  std::vector<Layout> layouts;
  std::vector<StepItem> items;
};

constexpr DType kF = DType::kF32, kB = DType::kBF16;

// The batch as written to `device`, and the caller's indices of a launch's items.
struct Written {
  explicit Written(Batch& of) : batch(of), bytes(of.bytes()) { of.write(bytes.data(), bytes.data()); }
  std::vector<uint32_t> indices(const Batch::Launch& launch) const {
    std::vector<uint32_t> all;
    for (int64_t n = 0; n < launch.count; ++n) all.push_back(batch.items(bytes.data(), launch)[n].index);
    return all;
  }
  std::vector<int64_t> starts(const Batch::Launch& launch) const {
    const int64_t* const first = batch.starts(bytes.data(), launch);
    return {first, first + launch.count};
  }
  Batch& batch;
  std::vector<std::byte> bytes;
};

TEST(Batch, OneLaunchForAllOfAKernel) {
  Steps steps({{0, 0, kF, kF, 256},
               {0, 1, kF, kF, 256},
               {0, 0, kF, kF, 257},
               {0, 0, kF, kF, 1, true},
               {1, 0, kF, kF, 256},
               {0, 0, kB, kF, 256}});
  Batch batch;
  batch.add_steps(steps.items, false);
  ASSERT_EQ(batch.launches().size(), 4u);
  const Written written(batch);
  EXPECT_EQ(written.indices(batch.launches()[0]), (std::vector<uint32_t>{0, 2, 5}));  // of any element types
  EXPECT_EQ(written.starts(batch.launches()[0]), (std::vector<int64_t>{0, 1, 3}));
  EXPECT_EQ(batch.launches()[0].units, 4);
  EXPECT_TRUE(batch.launches()[1].ballot);
}

TEST(Batch, InTiles) {
  Steps steps({{0, 0, kF, kF, 256 * 33}, {0, 0, kB, kF, 1}, {0, 0, kB, kB, 0}, {0, 0, kB, kF, 256 * 32}});
  Batch batch(32);
  batch.add_steps(steps.items, false);
  ASSERT_EQ(batch.launches().size(), 1u);
  const Written written(batch);
  const Batch::Launch& launch = batch.launches()[0];
  EXPECT_EQ(written.starts(launch), (std::vector<int64_t>{0, 2, 3, 3}));
  EXPECT_EQ(launch.units, 4);
  EXPECT_EQ(batch.items(written.bytes.data(), launch)[0].blocks, 33);
}

TEST(Batch, InOrderWhereAsked) {
  Steps steps({{1, 0, kF, kF, 1}, {0, 0, kF, kF, 1}, {0, 0, kF, kF, 1}});
  Batch batch;
  batch.add_steps(steps.items, true);
  ASSERT_EQ(batch.launches().size(), 3u);
  const Written written(batch);
  for (uint32_t n = 0; n < 3; ++n) EXPECT_EQ(written.indices(batch.launches()[n]), std::vector<uint32_t>{n});
  EXPECT_EQ(batch.launches()[0].rule, 1);
}

// Each launch has its own counter, which is 0 whenever the batch is written.
TEST(Batch, LaunchesHaveCounters) {
  Steps steps({{1, 0, kF, kF, 8}, {0, 0, kF, kF, 8}, {2, 0, kF, kF, 8}});
  const int64_t sizes[] = {4, 2}, strides[] = {3, 16};
  const Layout strided = Layout::make(sizes, strides);
  steps.items[1].grad_layout = &strided;
  Batch batch;
  batch.add_steps(steps.items, false);
  ASSERT_EQ(batch.launches().size(), 3u);
  Written written(batch);
  const std::vector<std::byte> before = written.bytes;
  int64_t number = 0;
  for (const Batch::Launch& launch : batch.launches()) {
    int64_t* const taken = batch.taken(written.bytes.data(), launch);
    EXPECT_EQ(*taken, 0);
    *taken = ++number;
  }
  for (const Batch::Launch& launch : batch.launches())
    EXPECT_EQ(*batch.taken(written.bytes.data(), launch), launch.first + 1);
  EXPECT_EQ(reinterpret_cast<std::byte*>(batch.taken(written.bytes.data(), batch.launches()[2]) + 1),
            written.bytes.data() + written.bytes.size());
  batch.clear();
  batch.add_steps(steps.items, false);
  batch.write(written.bytes.data(), written.bytes.data());
  EXPECT_TRUE(written.bytes == before) << "a counter is not 0, or something else lay there";
}

}  // namespace
}  // namespace lowtide::kernels
