// Claims: whatever is added and when, a budget's file never exceeds its limit; offload() moves all state, or none if a
// budget cannot take it; impossible step counts are refused.
#include "lowtide/optimizer.h"
#include "memory/state_store.h"
#include "support/checkpoint_case.h"
#include "support/optimizer_case.h"
#include "support/scratch_support.h"
#include "support/test.h"

namespace lowtide::testing {
namespace {

TEST(Limits, TheFileNeverGrowsAboveItsLimit) {
  const TemporaryDirectory disk;
  Rng rng = seeded("parameters added to stores with a limit", 5);
  int adds = 0, refused_by_plan = 0, refused_by_file = 0, above = 0, changed = 0;
  for (int trial = 0; trial < 100; ++trial) {
    const int64_t limit = rng.between(20, 80) * kPageBytes;
    StateStore store(
        system_env(),
        {{.host = rng.between(4, 20) * kPageBytes, .disk = disk.path(), .disk_limit = limit, .chunk = kPageBytes}});
    for (int64_t param = 0; param < 8; ++param) {
      // If the block is large, each chunk is one block. Their sizes differ, so that the best set to keep changes.
      const ShapedParam added{
          param, {rng.between(1, 8), rng.between(100, 300), 2, {{8 << rng.between(0, 4)}, {8 << rng.between(0, 4)}}}};
      const MemoryReport before = store.report();
      try {
        store.add({&added, 1});
        ++adds;
      } catch (const Error& error) {
        EXPECT_EQ(error.kind(), ErrorKind::kInvalidArgument);
        ++(std::string(error.what()).find("keep their places") == std::string::npos ? refused_by_plan
                                                                                    : refused_by_file);
        const MemoryReport after = store.report();
        changed += after.chunks != before.chunks || after.disk_bytes != before.disk_bytes ||
                   after.allocated_bytes != before.allocated_bytes || store.has(param);
      }
      above += store.report().disk_bytes > limit;
    }
  }
  EXPECT_GT(adds, 300);
  EXPECT_GT(refused_by_plan, 3);
  EXPECT_GT(refused_by_file, 0) << "control: places of chunks that became resident must have counted";
  EXPECT_EQ(above + changed, 0);
  figure("{} additions: above the limit {}; refused by the plan {}, for places in the file {}, changed by it {}", adds,
         above, refused_by_plan, refused_by_file, changed);
}

// State that fitted stays directly addressable; parameters added later get the rest. A refusal names the given budget,
// and the size that it asks for suffices for both.
TEST(Limits, ARefusalBesideOtherStateNamesTheBudgetThatWasGiven) {
  const TemporaryDirectory disk;
  Rng rng(1);
  const auto step_of = [&](int64_t host, int64_t first, int64_t added, const std::string& directory) {
    OptimizerOptions options;
    options.memory.host = host, options.memory.disk = directory;
    Optimizer optimizer(options);
    GroupOptions group{.state = "fp32"};
    std::vector<Tensor> params;
    std::vector<Gradient> gradients;
    for (const int64_t elements : {first, added}) {
      params.emplace_back(DType::kF32, std::vector<int64_t>{elements}).randomize(rng);
      optimizer.add_param(optimizer.add_group(group), params.back().view());
      gradients.push_back(params.back().gradient());
      optimizer.step(gradients);
    }
    return optimizer.report();
  };
  // 8 bytes of state per element, and 4160 after each of two arrays: 12 KiB of 1 MiB remain, less than any chunk.
  const int64_t budget = 1 << 20, first = 128000;
  for (const std::string& directory : {disk.path(), std::string()}) {
    const auto refusal = error_of([&] { step_of(budget, first, 100000, directory); });
    ASSERT_TRUE(refusal);
    const std::string what = refusal->what();
    EXPECT_NE(what.find("the host memory budget is 1048576 bytes (1.00 MiB), of which other state has 1036288 bytes"),
              std::string::npos)
        << what;
    const size_t at = what.find("at least ");
    ASSERT_NE(at, std::string::npos) << what;
    const int64_t wanted = std::stoll(what.substr(at + 9));
    if (!directory.empty()) {
      EXPECT_TRUE(error_of([&] { step_of(wanted - 1, first, 100000, directory); })) << what;
    }
    const MemoryReport report = step_of(wanted, first, 100000, directory);
    EXPECT_LE(report.allocated_bytes, wanted);
    EXPECT_EQ(report.disk_bytes > 0, !directory.empty());
  }
}

TEST(Limits, OffloadMovesNothingIfABudgetCannotTakeIt) {
  const TemporaryDirectory disk;
  Rng rng(1);
  int refused = 0;
  int64_t moved = 0;
  for (const lowtide::Memory& second :
       {lowtide::Memory{1 << 20}, lowtide::Memory{1 << 20, disk.path(), 4096}, lowtide::Memory{}}) {
    OptimizerOptions options{.memory = {1 << 20, disk.path()}};
    Optimizer optimizer(options);
    GroupOptions group;
    optimizer.add_group(group);
    group.memory = second;
    optimizer.add_group(group);
    std::vector<Tensor> params, gradients;
    for (int i = 0; i < 2; ++i) {
      params.emplace_back(DType::kF32, std::vector<int64_t>{20000}).randomize(rng);
      gradients.emplace_back(DType::kF32, std::vector<int64_t>{20000}).randomize(rng);
    }
    for (int i = 0; i < 2; ++i) optimizer.add_param(i, params[static_cast<size_t>(i)].view());
    optimizer.step(std::vector<Gradient>{gradients[0].gradient(), gradients[1].gradient()});
    try {
      optimizer.offload();
    } catch (const Error& error) {
      refused += error.kind() == ErrorKind::kInvalidArgument;
    }
    moved += optimizer.report().offloaded_bytes;
  }
  EXPECT_EQ(refused, 3);
  EXPECT_EQ(moved, 0);
  figure("offload refused {}/3, bytes moved by it {}", refused, moved);
}

TEST(Limits, CountsOfStepsHaveABound) {
  const TemporaryDirectory files;
  const std::string path = files.file("c");
  Rng rng(2);
  Tensor param(DType::kF32, {7}), gradient(DType::kF32, {7});
  param.randomize(rng);
  gradient.randomize(rng);
  Optimizer optimizer(OptimizerOptions{});
  optimizer.add_group({});
  optimizer.add_param(0, param.view());
  Content saved;
  saved.description.rule = "adamw";
  saved.description.params = {param_of("0", {7}, 2, 4, 0)};
  CheckpointParam& only = saved.description.params[0];
  only.codec = optimizer.state_codec(0);
  saved.fill(rng);
  for (auto& [key, bytes] : saved.arrays) std::fill(bytes.begin(), bytes.end(), '\0');
  constexpr int64_t kMost = int64_t{1} << 53;
  int accepted = 0, refused = 0;
  for (const int64_t steps : {kMost, kMost + 1, std::numeric_limits<int64_t>::max()}) {
    only.steps = steps;
    saved.save(path);
    for (const bool from_file : {true, false}) try {
        from_file ? static_cast<void>(optimizer.load(path)) : optimizer.set_steps(0, steps);
        ++accepted;
        EXPECT_TRUE(optimizer.step(std::vector<Gradient>{gradient.gradient()}).applied);
        EXPECT_EQ(optimizer.steps(0), steps + 1);
      } catch (const Error& error) {
        refused += error.kind() == ErrorKind::kInvalidArgument;
      }
  }
  EXPECT_EQ(accepted, 2);
  EXPECT_EQ(refused, 4);
  figure("counts of 2^53 steps accepted {}/2, larger ones refused {}/4", accepted, refused);
}

}  // namespace
}  // namespace lowtide::testing
