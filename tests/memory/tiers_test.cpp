// Claim: the place of state changes no bit. With random parameters, rules, codecs, types and budgets, hundreds of steps
// with all state in RAM, and with the rest on disk, end in the same bytes, and the moved bytes are the planned ones.
#include "support/optimizer_case.h"
#include "support/test.h"

namespace lowtide::testing {
namespace {

constexpr int kSteps = 200;

struct Model {
  std::vector<Tensor> params, grads;
  std::vector<bool> without;  // has no gradient in some steps

  Model(Rng& rng, DType param, DType grad) {
    const int64_t count = rng.between(1, 12);
    for (int64_t i = 0; i < count; ++i) {
      std::vector<int64_t> sizes;
      switch (rng.below(5)) {
        case 0:
          sizes = {rng.between(1, 5), rng.between(1, 3000)};
          break;
        case 1:
          sizes = {rng.between(1, 40), 256};
          break;
        case 2:
          sizes = {};
          break;
        case 3:
          sizes = {rng.between(0, 3), rng.between(1, 300), 2};
          break;
        default:
          sizes = {rng.between(1, 40000)};
      }
      params.emplace_back(param, sizes).randomize(rng);
      grads.emplace_back(grad, sizes);
      without.push_back(rng.chance(0.2));
    }
  }
};

Optimizer build(Config config, const Memory& memory, Model& model) {
  config.memory = memory;
  Optimizer optimizer = make_optimizer(config);
  for (Tensor& param : model.params) optimizer.add_param(0, param.view());
  return optimizer;
}

void run(Optimizer& optimizer, Model& model, uint64_t seed, int first, int count) {
  for (int step = first; step < first + count; ++step) {
    Rng rng(seed * 1000 + static_cast<uint64_t>(step));
    std::vector<Gradient> gradients;
    for (size_t i = 0; i < model.grads.size(); ++i) {
      if (step % 10 == 0) model.grads[i].randomize(rng, 1e-2);
      const bool none = model.without[i] && (rng.next() & 1);
      gradients.push_back(none ? Gradient{} : model.grads[i].gradient());
    }
    if (step % 4 == 3)  // does nothing with most rules
      for (const bool evaluating : {true, false}) optimizer.set_evaluating(evaluating);
    optimizer.step(gradients);
  }
}

std::vector<std::byte> everything(const Optimizer& optimizer, const Model& model) {
  std::vector<const Tensor*> params;
  for (const Tensor& param : model.params) params.push_back(&param);
  return snapshot(optimizer, params);
}

TEST(Tiers, DiskAndRamGiveTheSameBits) {
  Rng rng = seeded("tiers", 90);
  const TemporaryDirectory directory;
  int plans = 0, streamed = 0;
  int64_t parameters = 0, compared = 0, differing = 0, moved = 0, planned = 0;
  constexpr int kVariants = 3;
  const std::vector<std::string> names = rule_names(), codecs = codec_names();
  for (int64_t i = 0; i < std::ssize(names); ++i)
    for (int64_t j = 0; j < std::ssize(codecs) * kVariants; ++j) {
      if (!in_share(i, j, std::ssize(codecs) * kVariants)) continue;
      const std::string& rule = names[static_cast<size_t>(i)];
      const std::string& codec = codecs[static_cast<size_t>(j / kVariants)];
      Config config{.rule = rule, .hyper = random_variant(rule, rng)};
      const auto states = codec_names_of(rule, config.hyper);
      config.state = std::find(states.begin(), states.end(), codec) == states.end() ? "dynamic8" : codec;
      config.threads = static_cast<int>(rng.between(1, 2));
      const uint64_t seed = rng.next() % 100000;
      const DType p = kDTypes[rng.below(3)], g = kDTypes[rng.below(3)];
      Rng one(seed), two(seed);
      Model in_ram(one, p, g), on_disk(two, p, g);
      Optimizer a = build(config, {}, in_ram);
      // From just enough for the ring to everything.
      const int64_t chunk = 4096 * rng.between(1, 4);
      const auto share = static_cast<int64_t>(rng.uniform() * double(a.report().state_bytes));
      const Memory memory{3 * chunk + share / 4096 * 4096, directory.path(), -1, chunk};
      Optimizer b = build(config, memory, on_disk);
      run(a, in_ram, seed, 0, kSteps);
      const int64_t before = b.report().read_bytes + b.report().written_bytes;
      run(b, on_disk, seed, 0, kSteps);
      const MemoryReport report = b.report();
      EXPECT_LE(report.allocated_bytes, memory.host) << rule << " " << codec;
      const auto x = everything(a, in_ram), y = everything(b, on_disk);
      ASSERT_EQ(x.size(), y.size());
      int64_t bad = 0;
      for (size_t i = 0; i < x.size(); ++i) bad += x[i] != y[i];
      EXPECT_EQ(bad, 0) << rule << " " << codec << " seed " << seed;
      differing += bad, compared += static_cast<int64_t>(x.size());
      parameters += static_cast<int64_t>(in_ram.params.size());
      moved += report.read_bytes + report.written_bytes - before;
      planned += report.moved_per_step;
      streamed += report.disk_bytes > 0;
      ++plans;
    }
  EXPECT_EQ(differing, 0);
  EXPECT_GT(streamed, plans / 3) << "control: too few plans used the disk";
  figure(
      "{} plans ({} with state on disk), {} parameters, {} steps each: {} bytes compared, {} differ; {} MB moved, {} "
      "MB a step planned",
      plans, streamed, parameters, kSteps, compared, differing, double(moved) * 1e-6, double(planned) * 1e-6);
}

TEST(Tiers, OnlyWhatDoesNotFitMoves) {
  const TemporaryDirectory directory;
  Rng rng = seeded("traffic", 91);
  Tensor param(DType::kF32, {4096, 1024});
  Tensor grad(DType::kF32, {4096, 1024});
  param.randomize(rng);
  grad.randomize(rng);
  const int64_t chunk = 1 << 20;
  double worst = 1;
  for (const double share : {0.0, 0.25, 0.5, 0.75, 1.0}) {
    const int64_t total = param.numel * 8;
    OptimizerOptions options{
        .memory = {3 * chunk + static_cast<int64_t>(share * double(total)), directory.path(), -1, chunk}};
    Optimizer optimizer(options);
    GroupOptions group{.state = "fp32"};
    optimizer.add_group(group);
    optimizer.add_param(0, param.view());
    const Gradient g = grad.gradient();
    for (int i = 0; i < 3; ++i) optimizer.step({&g, 1});
    const MemoryReport report = optimizer.report();
    const int64_t moved = (report.read_bytes + report.written_bytes) / 3;
    EXPECT_EQ(moved, report.moved_per_step);
    EXPECT_EQ(moved * 3, report.read_bytes + report.written_bytes);
    EXPECT_LE(report.allocated_bytes, options.memory.host);
    // The least: twice the state that the budget does not keep beside the ring (a chunk more if sizes do not divide).
    const int64_t ring = moved ? 3 * chunk : 0;
    const int64_t least = 2 * std::max<int64_t>(0, total - (options.memory.host - ring));
    if (least > 0) worst = std::max(worst, double(moved) / double(least + 2 * chunk));
    figure("budget for {} %: {} bytes a step move, at least {}", share * 100, moved, least);
  }
  EXPECT_LE(worst, 1.02);
}

TEST(Tiers, WhatIsRestoredContinuesOnDisk) {
  const TemporaryDirectory directory;
  Rng rng(92);
  Config config;
  Model a(rng, DType::kF32, DType::kF32);
  Rng again(92);
  Model b(again, DType::kF32, DType::kF32);
  Optimizer x = build(config, {}, a);
  Optimizer y = build(config, Memory{4096 * 16, directory.path(), -1, 4096 * 4}, b);
  run(x, a, 1, 0, 5);
  b.grads = a.grads;
  for (int64_t i = 0; i < x.param_count(); ++i) {
    y.allocate_state(i);
    b.params[size_t(i)].data = a.params[size_t(i)].data;
    y.rebind(i, b.params[size_t(i)].view());
    int k = 0;
    for (const StateView& state : x.state(i)) {
      y.write_state(i, k, state.codes, state.scales);
      std::vector<float> decoded(static_cast<size_t>(state.numel)), back(decoded.size());
      x.export_state(i, k, decoded.data());
      y.export_state(i, k++, back.data());
      EXPECT_EQ(decoded, back);
    }
    y.set_steps(i, x.steps(i));
  }
  run(x, a, 1, 5, 5);
  run(y, b, 1, 5, 5);
  EXPECT_EQ(everything(x, a), everything(y, b));
}

TEST(Tiers, BudgetsThatCannotBeKeptAreRefused) {
  const TemporaryDirectory directory;
  Tensor param(DType::kF32, {1 << 20});
  Tensor grad(DType::kF32, {1 << 20});
  const Gradient g = grad.gradient();
  const auto attempt = [&](const Memory& memory) {
    Config config{.memory = memory};
    Optimizer optimizer = make_optimizer(config);
    optimizer.add_param(0, param.view());
    const std::vector<std::byte> before = param.data;
    try {
      optimizer.step({&g, 1});
    } catch (...) {
      EXPECT_EQ(before, param.data);
      EXPECT_EQ(optimizer.steps(0), 0);
      throw;
    }
  };
  for (const Memory& memory :
       {Memory{1000, "", -1, 0}, Memory{1000, directory.path(), -1, 0}, Memory{1 << 20, directory.path(), 100, 0},
        Memory{1 << 20, "/does/not/exist", -1, 0}, Memory{-2, "", -1, 0}, Memory{-1, directory.path(), -1, 0},
        Memory{1 << 20, directory.path(), -1, 100}}) {
    try {
      attempt(memory);
      ADD_FAILURE() << "not refused: " << memory.host << " " << memory.disk;
    } catch (const Error& error) {
      figure("refused: {}", error.what());
    }
  }
}

}  // namespace
}  // namespace lowtide::testing
