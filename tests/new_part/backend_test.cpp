// Claim: the backend of docs/project/adding-a-backend.md, added as the page says, opens by its name, appears in the
// report, and steps.

#include "backend/registry.h"
#include "part.h"
#include "support/optimizer_case.h"
#include "support/plainest_target.h"
#include "support/test.h"

namespace lowtide::testing {
namespace {

TEST(NewBackend, IsAFolderAndALine) { EXPECT_EQ(std::size(kPartFiles), 2u); }

TEST(NewBackend, OpensByItsName) {
  const auto backend = open_backend("mirror", plainest_target());
  EXPECT_EQ(backend->target(), plainest_target());
  EXPECT_NE(refusal([] { open_backend("mirrors", ""); }).find("mirror"), std::string::npos) << "names those there are";
}

TEST(NewBackend, IsInTheReport) {
  const std::vector<BackendReport> all = report_backends();
  const auto found = std::find_if(all.begin(), all.end(), [](const auto& one) { return one.name == "mirror"; });
  ASSERT_NE(found, all.end());
  EXPECT_TRUE(found->available);
  EXPECT_EQ(found->detail, "the CPU, mirrored");
}

TEST(NewBackend, StepsAsTheCpuDoes) {
  std::vector<std::byte> bytes[2];
  for (int mirrored = 0; mirrored < 2; ++mirrored) {
    Rng rng(5);
    Tensor param(DType::kF32, {4, 300}), grad(DType::kF32, {4, 300});
    param.randomize(rng);
    OptimizerOptions options;
    options.rule = "adamw";
    if (mirrored) options.backend = "mirror";
    Optimizer optimizer(options);
    optimizer.add_param(optimizer.add_group({.hyper = default_hyper("adamw")}), param.view());
    const std::vector<std::byte> start = param.data;
    for (int step = 0; step < 3; ++step) {
      grad.randomize(rng);
      const Gradient gradient = grad.gradient();
      optimizer.step({&gradient, 1});
    }
    EXPECT_NE(param.data, start);
    bytes[mirrored] = snapshot(optimizer, {&param});
  }
  EXPECT_EQ(bytes[0], bytes[1]);
}

}  // namespace
}  // namespace lowtide::testing
