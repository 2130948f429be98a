// Every wrong value is refused with a message that says what the call got and wanted, and changes nothing.
#include "support/optimizer_case.h"
#include "support/test.h"

namespace lowtide::testing {
namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN(), kInf = std::numeric_limits<double>::infinity();

// Calls that must be refused, with words of the expected messages.
struct BadCall {
  const char* name;
  std::function<void(Optimizer&)> call;
  std::vector<const char*> words;
};

std::function<void(Optimizer&)> with_hyper(std::function<void(Hyper&)> change) {
  return [change](Optimizer& optimizer) {
    Hyper hyper = optimizer.hyper(0);
    change(hyper);
    optimizer.set_hyper(0, hyper);
  };
}

std::vector<BadCall> hyper_calls() {
  std::vector<BadCall> all;
  const auto add = [&](const char* name, std::function<void(Hyper&)> change, std::vector<const char*> words) {
    all.push_back({name, with_hyper(std::move(change)), std::move(words)});
  };
  for (const double value : {-1.0, kNan, kInf, 1e300}) {
    add("lr", [=](Hyper& h) { h.lr = value; }, {"got lr=", "wanted"});
    add("weight_decay", [=](Hyper& h) { h.weight_decay = value; }, {"got weight_decay=", "wanted"});
    add("momentum", [=](Hyper& h) { h.momentum = value; }, {"got momentum=", "wanted"});
  }
  for (const double value : {-0.1, 1.0, 2.0, kNan}) {
    add("beta1", [=](Hyper& h) { h.beta1 = value; }, {"got beta1=", "wanted"});
    add("beta2", [=](Hyper& h) { h.beta2 = value; }, {"got beta2=", "wanted"});
  }
  for (const double value : {0.0, -1e-8, 1e-60, kInf, kNan, 1e300})
    add("eps", [=](Hyper& h) { h.eps = value; }, {"got eps=", "wanted eps > 0"});
  for (const double value : {kNan, kInf, 1e300})
    add("dampening", [=](Hyper& h) { h.dampening = value; }, {"got dampening=", "wanted"});
  add("nesterov", [](Hyper& h) { h.nesterov = true; }, {"make adamw_nesterov out of adamw", "wanted"});
  add("amsgrad", [](Hyper& h) { h.amsgrad = true; }, {"make adamw_amsgrad out of adamw", "wanted"});
  add("both", [](Hyper& h) { h.amsgrad = h.nesterov = true; }, {"got amsgrad and nesterov for adamw", "wanted one"});
  return all;
}

float memory[16];
const int64_t kNegativeStride[] = {-1};

std::vector<BadCall> param_calls() {
  const auto add = [](TensorView view) { return [view](Optimizer& optimizer) { optimizer.add_param(0, view); }; };
  constexpr int64_t kHuge = int64_t{1} << 40;
  return {
      {"group -1",
       [](Optimizer& o) {
         o.add_param(-1, {memory, DType::kF32, {4}, {}});
       },
       {"got group -1, wanted"}},
      {"group 1",
       [](Optimizer& o) {
         o.add_param(1, {memory, DType::kF32, {4}, {}});
       },
       {"got group 1, wanted"}},
      {"set_hyper of group 5", [](Optimizer& o) { o.set_hyper(5, {}); }, {"got group 5, wanted"}},
      {"hyper of group 5", [](Optimizer& o) { o.hyper(5); }, {"got group 5, wanted"}},
      {"element type",
       add({memory, static_cast<DType>(7), {4}, {}}),
       {"got a parameter of element type 7", "float32, bfloat16 or float16"}},
      {"null", add({nullptr, DType::kF32, {4}, {}}), {"null pointer", "4 elements"}},
      {"negative size", add({memory, DType::kF32, {4, -1}, {}}), {"got a size of -1", "0 or more"}},
      {"too many elements", add({memory, DType::kF32, {kHuge, kHuge}, {}}), {"more than 2^62"}},
      {"more bytes than can be counted", add({memory, DType::kF32, {int64_t{1} << 61, 1}, {}}), {"2^52"}},
      {"strides for other dims", add({memory, DType::kF32, {4}, {1, 1}}), {"got 2 strides for 1 sizes"}},
      {"negative stride", add({memory, DType::kF32, {4}, {-1}}), {"got a stride of -1", "0 or more"}},
      {"strides beyond all memory", add({memory, DType::kF32, {4}, {int64_t{1} << 62}}), {"2^62"}},
      {"expanded", add({memory, DType::kF32, {4}, {0}}), {"share one address", "a copy"}},
      {"state name",
       [](Optimizer& o) {
         GroupOptions group{.state = "int3"};
         o.add_group(group);
       },
       {"got state 'int3'", "fp32, bf16, dynamic8"}},
      {"min_quantized_numel",
       [](Optimizer& o) {
         GroupOptions group{.min_quantized_numel = -1};
         o.add_group(group);
       },
       {"got min_quantized_numel=-1", "wanted 0"}},
      {"rebind to other sizes",
       [](Optimizer& o) {
         o.rebind(0, {memory, DType::kF32, {4}, {}});
       },
       {"sizes", "parameter 0"}},
      {"rebind of none",
       [](Optimizer& o) {
         o.rebind(7, {memory, DType::kF32, {4}, {}});
       },
       {"got parameter 7, wanted"}},
      {"rebind to null",
       [](Optimizer& o) {
         o.rebind(0, {nullptr, DType::kF32, {600}, {}});
       },
       {"null pointer"}},
      {"state of none", [](Optimizer& o) { o.state(-1); }, {"got parameter -1, wanted"}},
      {"steps of none", [](Optimizer& o) { o.steps(2); }, {"got parameter 2, wanted"}},
      {"set_steps", [](Optimizer& o) { o.set_steps(0, -3); }, {"got -3 steps", "wanted 0"}},
      {"export of none",
       [](Optimizer& o) { o.export_state(0, 2, memory); },
       {"got state 2 of parameter 0, which has 2"}},
      {"import of none", [](Optimizer& o) { o.import_state(0, -1, memory); }, {"got state -1"}},
      {"threads", [](Optimizer& o) { o.set_threads(-1); }, {"got threads=-1", "wanted 0"}},
  };
}

// The first gradient is always good, so a step before the bad one would show.
std::vector<BadCall> step_calls() {
  const auto step = [](Gradient second, StepOptions options = {}) {
    return [=](Optimizer& o) {
      static const std::vector<float> good(600, 1.f);
      const Gradient grads[] = {{good.data(), DType::kF32, nullptr}, second};
      o.step(grads, options);
    };
  };
  const Gradient good{memory, DType::kF32, nullptr};
  const auto scaled = [](double scale) {
    StepOptions options{.grad_scale = scale};
    return options;
  };
  StepOptions on_stream{.stream = memory};
  return {
      {"no gradients", [](Optimizer& o) { o.step({}); }, {"got 0 gradients for 2 parameters"}},
      {"gradient type", step({memory, static_cast<DType>(9), nullptr}), {"got element type 9", "parameter 1"}},
      {"gradient stride", step({memory, DType::kF32, kNegativeStride}), {"got a stride of -1", "0 or more"}},
      {"grad_scale inf", step(good, scaled(kInf)), {"got grad_scale=inf", "wanted"}},
      {"grad_scale nan", step(good, scaled(kNan)), {"got grad_scale=", "wanted"}},
      {"grad_scale 1e300", step(good, scaled(1e300)), {"got grad_scale=1e+300", "wanted"}},
      {"stream", step(good, on_stream), {"got a stream", "wanted nullptr"}},
  };
}

TEST(BadInput, IsRefusedWithReasonAndChangesNothing) {
  Tensor p(DType::kF32, {600}), q(DType::kF32, {16});
  Rng rng(80);
  p.randomize(rng), q.randomize(rng);
  Optimizer optimizer = make_optimizer({});
  optimizer.add_param(0, p.view());
  optimizer.add_param(0, q.view());
  const std::vector<float> ones(600, 1.f);
  const Gradient grads[] = {{ones.data(), DType::kF32, nullptr}, {ones.data(), DType::kF32, nullptr}};
  optimizer.step(grads);
  const std::vector<std::byte> before = snapshot(optimizer, {&p, &q});
  int refused = 0;
  for (const std::vector<BadCall>& calls : {hyper_calls(), param_calls(), step_calls()})
    for (const BadCall& bad : calls) {
      SCOPED_TRACE(bad.name);
      const std::string message = refusal([&] { bad.call(optimizer); });
      for (const char* words : bad.words)
        EXPECT_NE(message.find(words), std::string::npos) << words << " not in: " << message;
      EXPECT_TRUE(snapshot(optimizer, {&p, &q}) == before);
      EXPECT_EQ(optimizer.param_count(), 2);
      EXPECT_EQ(optimizer.report().steps, 1);
      EXPECT_EQ(optimizer.hyper(0).lr, Hyper{}.lr);
      ++refused;
    }
  // Control: a good step changes the snapshot.
  optimizer.step(grads);
  EXPECT_FALSE(snapshot(optimizer, {&p, &q}) == before);
  figure("{} bad calls refused, 0 changed anything", refused);
}

TEST(BadInput, OptimizersAreNotMadeFromIt) {
  const auto make = [](auto&& change) {
    return [change] {
      OptimizerOptions options;
      change(options);
      Optimizer optimizer(options);
    };
  };
  expect_refusal(make([](OptimizerOptions& o) { o.rule = "adma"; }),
                 "got rule 'adma', wanted one of: adam, adamw, lion, sgd");
  expect_refusal(make([](OptimizerOptions& o) { o.rule = "sgd_plain"; }), "got rule");
  expect_refusal(make([](OptimizerOptions& o) { o.cpu_target = "avx9"; }), "'avx9'");
  expect_refusal(make([](OptimizerOptions& o) { o.threads = -2; }), "threads=-2");
  expect_refusal([] { default_hyper("x"); }, "got rule 'x'");
  expect_refusal([] { state_names("x"); }, "got rule 'x'");
}

}  // namespace
}  // namespace lowtide::testing
