// Steps that give directions instead of moving parameters.
#include "backend/catalog.h"
#include "lowtide/optimizer.h"
#include "support/half_reference.h"
#include "support/optimizer_case.h"
#include "support/test.h"

namespace lowtide::testing {
namespace {

struct Param {
  std::vector<int64_t> sizes, strides;
  std::vector<float> data, grad, direction;
  int64_t numel = 1;

  Param(std::vector<int64_t> of_sizes, std::vector<int64_t> of_strides, int64_t room, Rng& rng)
      : sizes(std::move(of_sizes)), strides(std::move(of_strides)), data(static_cast<size_t>(room)) {
    for (const int64_t size : sizes) numel *= size;
    grad.resize(static_cast<size_t>(numel)), direction.assign(grad.size(), 7.f);
    for (float& x : data) x = static_cast<float>(rng.normal());
  }
  TensorView view() { return {data.data(), DType::kF32, sizes, strides}; }
};

// A tall matrix, one that is transposed in memory, a vector, one element.
std::vector<Param> params(Rng& rng) {
  return {{{40, 300}, {}, 12000, rng}, {{70, 90}, {1, 70}, 6300, rng}, {{9}, {}, 9, rng}, {{}, {}, 1, rng}};
}

int64_t g_bits = 0;

void expect_equal(const std::vector<float>& direction, const std::vector<float>& moved) {
  for (size_t i = 0; i < direction.size(); ++i) {
    // Out of a parameter of zeros a step of lr = 1 makes minus the direction. 0 - 0 is 0, -0 is no other value.
    ASSERT_EQ(direction[i], -moved[i]) << i;
    g_bits += 32;
  }
}

// For every rule and state: what steps of lr = 1 make out of zeros is minus the directions, and states are those of a
// step, bit for bit; under a budget as well. Parameters keep every bit.
TEST(Directions, AreWhatAStepWouldSubtract) {
  const TemporaryDirectory folder;
  int cases = 0, streamed = 0;
  g_bits = 0;
  for (const std::string& rule : rule_names()) {
    if (const RuleInfo& info = rule_info(find_rule(rule)); info.norms || info.sums || info.make_average_args)
      continue;  // refused
    for (const std::string& state : testing::codec_names_of(rule, {.momentum = 0.9}))
      for (const bool paged : {false, true}) {
        SCOPED_TRACE(rule + ", " + state + (paged ? ", paged" : ""));
        Rng rng(91);
        std::vector<Param> ours = params(rng), twins = params(rng);
        OptimizerOptions options{.rule = rule};
        Optimizer twin(options);
        if (paged) options.memory = {.host = 32 << 10, .disk = folder.path(), .chunk = 4096};
        Optimizer optimizer(options);
        GroupOptions group{.hyper = default_hyper(rule), .state = state, .min_quantized_numel = 100};
        group.hyper.momentum = 0.9, group.hyper.lr = 0.25, group.hyper.weight_decay = 0.5;
        optimizer.add_group(group);
        group.hyper.lr = 1, group.hyper.weight_decay = 0;
        twin.add_group(group);
        for (Param& p : ours) optimizer.add_param(0, p.view());
        for (Param& p : twins) twin.add_param(0, {p.data.data(), DType::kF32, p.sizes, {}});
        const std::vector<Param> before = ours;
        for (int step = 0; step < 3; ++step) {
          std::vector<Gradient> grads, of_twin;
          std::vector<float*> out;
          for (size_t i = 0; i < ours.size(); ++i) {
            for (float& g : ours[i].grad) g = static_cast<float>(rng.normal());
            twins[i].data.assign(static_cast<size_t>(twins[i].numel), 0.f);
            grads.push_back({ours[i].grad.data()});
            of_twin.push_back({ours[i].grad.data()});
            out.push_back(ours[i].direction.data());
          }
          StepOptions with{.directions = out};
          EXPECT_TRUE(optimizer.step(grads, with).applied);
          for (size_t i = 0; i < ours.size(); ++i)
            twin.rebind(static_cast<int64_t>(i), {twins[i].data.data(), DType::kF32, twins[i].sizes, {}});
          twin.step(of_twin);
          for (size_t i = 0; i < ours.size(); ++i) {
            expect_equal(ours[i].direction, twins[i].data);
            EXPECT_TRUE(ours[i].data == before[i].data) << "moved";
            for (int k = 0; k < static_cast<int>(twin.state(static_cast<int64_t>(i)).size()); ++k) {
              std::vector<float> a(ours[i].grad.size()), b(a.size());
              optimizer.export_state(static_cast<int64_t>(i), k, a.data());
              twin.export_state(static_cast<int64_t>(i), k, b.data());
              EXPECT_TRUE(a == b) << "state " << k << " of " << i;
            }
          }
        }
        streamed += optimizer.report().moved_per_step > 0;
        ++cases;
      }
  }
  figure("seed 91, {} rules x states x tiers, {} of them streaming: {} bits of directions equal", cases, streamed,
         g_bits);
  EXPECT_GE(streamed, cases / 4);
}

std::vector<float> values_of(Optimizer& optimizer, int64_t param, int64_t numel) {
  std::vector<float> all;
  for (int k = 0; k < static_cast<int>(optimizer.states_of(param).size()); ++k) {
    std::vector<float> values(static_cast<size_t>(numel));
    optimizer.export_state(param, k, values.data());
    all.insert(all.end(), values.begin(), values.end());
  }
  return all;
}

// For every rule and state: the directions of a step, and nothing else changes, under a budget as well.
TEST(Directions, CanBePreviewed) {
  const TemporaryDirectory folder;
  int cases = 0, streamed = 0;
  for (const std::string& rule : rule_names()) {
    if (const RuleInfo& info = rule_info(find_rule(rule)); info.norms || info.sums || info.make_average_args)
      continue;  // refused
    for (const std::string& state : testing::codec_names_of(rule, {.momentum = 0.9}))
      for (const bool paged : {false, true}) {
        SCOPED_TRACE(rule + ", " + state + (paged ? ", paged" : ""));
        Rng rng(94);
        std::vector<Param> ours = params(rng);
        OptimizerOptions options{.rule = rule};
        if (paged) options.memory = {.host = 32 << 10, .disk = folder.path(), .chunk = 4096};
        Optimizer optimizer(options);
        GroupOptions group{.hyper = default_hyper(rule), .state = state, .min_quantized_numel = 100};
        group.hyper.momentum = 0.9;
        optimizer.add_group(group);
        for (Param& p : ours) optimizer.add_param(0, p.view());
        for (int step = 0; step < 2; ++step) {
          std::vector<Gradient> grads;
          std::vector<float*> out;
          for (Param& p : ours) {
            for (float& g : p.grad) g = static_cast<float>(rng.normal());
            grads.push_back({p.grad.data()});
            out.push_back(p.direction.data());
          }
          std::vector<std::vector<float>> states, previewed;
          if (step)
            for (size_t i = 0; i < ours.size(); ++i)
              states.push_back(values_of(optimizer, static_cast<int64_t>(i), ours[i].numel));
          const int64_t steps = optimizer.report().steps;
          EXPECT_TRUE(optimizer.step(grads, {.assume_finite = true, .directions = out, .preview = true}).applied);
          EXPECT_EQ(optimizer.report().steps, steps);
          for (size_t i = 0; i < ours.size(); ++i) {
            EXPECT_EQ(*optimizer.steps_address(static_cast<int64_t>(i)), step);
            if (step) {
              EXPECT_EQ(values_of(optimizer, static_cast<int64_t>(i), ours[i].numel), states[i]) << i;
            }
            previewed.push_back(ours[i].direction);
          }
          optimizer.step(grads, {.directions = out});
          for (size_t i = 0; i < ours.size(); ++i) EXPECT_EQ(ours[i].direction, previewed[i]) << i;
        }
        streamed += optimizer.report().moved_per_step > 0;
        ++cases;
      }
  }
  figure("seed 94, {} rules x states x tiers, {} of them streaming", cases, streamed);
  EXPECT_GE(streamed, cases / 4);
}

// Weights move as SGD without momentum moves them by the same numbers, with every master; states are those of
// directions.
TEST(Updates, MoveWeightsInPlaceOfTheRule) {
  const TemporaryDirectory folder;
  int cases = 0, streamed = 0;
  for (const std::string state : {"fp32", "dynamic8"})
    for (const std::string master : {"", "residual16", "residual8", "stochastic"})
      for (const bool paged : {false, true}) {
        SCOPED_TRACE(state + ", master '" + master + "'" + (paged ? ", paged" : ""));
        Rng rng(95);
        const std::vector<int64_t> sizes{40, 300};
        const size_t numel = 12000;
        std::vector<uint16_t> weights(numel), twins, update(numel);
        std::vector<float> grad(numel), wide(numel), direction(numel);
        for (uint16_t& w : weights) w = bf16_nearest(rng.normal());
        twins = weights;
        OptimizerOptions options{.rule = "sgd"};
        Optimizer mover(options), rule(options);
        if (paged) options.memory = {.host = 8 << 10, .disk = folder.path(), .chunk = 4096};
        Optimizer optimizer(options);
        GroupOptions group{.hyper = default_hyper("sgd"), .state = state, .min_quantized_numel = 100, .master = master};
        group.hyper.lr = 1e-3, group.hyper.weight_decay = 0.1;
        mover.add_group(group);
        group.hyper.momentum = 0.9, group.hyper.nesterov = true;
        optimizer.add_group(group);
        rule.add_group(group);
        optimizer.add_param(0, {weights.data(), DType::kBF16, sizes, {}});
        mover.add_param(0, {twins.data(), DType::kBF16, sizes, {}});
        rule.add_param(0, {twins.data(), DType::kBF16, sizes, {}});
        for (int step = 0; step < 4; ++step) {
          for (size_t i = 0; i < numel; ++i) {
            grad[i] = static_cast<float>(rng.normal());
            update[i] = bf16_nearest(rng.normal());
            wide[i] = 4 * static_cast<float>(bf16_value(update[i]));
          }
          const Gradient grads[] = {{grad.data()}}, moves[] = {{wide.data()}};
          const Update updates[] = {{.data = update.data(), .dtype = DType::kBF16, .scale = 4}};
          float* const out[] = {direction.data()};
          EXPECT_TRUE(optimizer.step(grads, {.updates = updates}).applied);
          mover.step(moves);
          rule.step(grads, {.directions = out});
          EXPECT_TRUE(weights == twins) << step;
          EXPECT_EQ(values_of(optimizer, 0, 12000), values_of(rule, 0, 12000)) << step;
        }
        streamed += optimizer.report().moved_per_step > 0;
        ++cases;
      }
  figure("seed 95, {} states x masters x tiers, {} of them streaming", cases, streamed);
  EXPECT_EQ(streamed, cases / 2);
}

TEST(Directions, GoBesideStepsOfOthers) {
  Rng rng(92);
  std::vector<Param> ours = params(rng);
  Optimizer optimizer(OptimizerOptions{});
  optimizer.add_group({.hyper = default_hyper("adamw")});
  GroupOptions other{.hyper = default_hyper("sgd"), .rule = "sgd"};
  other.hyper.momentum = 0.9;
  optimizer.add_group(other);
  for (size_t i = 0; i < ours.size(); ++i) optimizer.add_param(i < 2, ours[i].view());
  EXPECT_STREQ(optimizer.states_of(0)[0].name, "momentum_buffer");
  EXPECT_STREQ(optimizer.states_of(3)[1].name, "exp_avg_sq");
  std::vector<Gradient> grads;
  for (Param& p : ours) {
    for (float& g : p.grad) g = 1;
    grads.push_back({p.grad.data()});
  }
  const std::vector<Param> before = ours;
  std::vector<float*> out = {ours[0].direction.data(), nullptr, nullptr, nullptr};
  StepOptions with{.directions = out};
  EXPECT_TRUE(optimizer.step(grads, with).applied);
  EXPECT_TRUE(ours[0].data == before[0].data);
  EXPECT_EQ(ours[0].direction, std::vector<float>(ours[0].direction.size(), 1.f)) << "b = g at the first step";
  for (size_t i = 1; i < 4; ++i) EXPECT_FALSE(ours[i].data == before[i].data) << i;
  // A step that is skipped leaves zeros.
  ours[3].grad[0] = std::numeric_limits<float>::quiet_NaN();
  EXPECT_FALSE(optimizer.step(grads, with).applied);
  EXPECT_EQ(ours[0].direction, std::vector<float>(ours[0].direction.size(), 0.f));
  out.pop_back();
  with.directions = out;
  expect_refusal([&] { optimizer.step(grads, with); }, "got memory for 3 directions and 4 parameters");
  std::vector<std::byte> bits(1 << 20);
  const SignBuffer signs{bits.data(), bits.data() + (1 << 19), nullptr};
  out.push_back(nullptr);
  with.directions = out;
  expect_refusal([&] { optimizer.ballots(grads, signs, true, with); }, "ballots take none");
}

}  // namespace
}  // namespace lowtide::testing
