// Ballots and sign steps through the optimizer, against a twin that really steps parameters of zero.
#include "support/fake/fake_backend.h"
#include "backend/signs.h"
#include "support/device_twins.h"
#include "support/optimizer_case.h"
#include "support/plainest_target.h"
#include "support/sign_reference.h"
#include "support/test.h"

namespace lowtide::testing {
namespace {

struct Signs {
  std::vector<std::byte> bits, presence;
  explicit Signs(const Optimizer& of)
      : bits(static_cast<size_t>(of.sign_count() / 8), std::byte{0x77}),
        presence(static_cast<size_t>(of.sign_count() / 512), std::byte{0x77}) {}
  SignBuffer buffer() { return {bits.data(), presence.data(), nullptr}; }
  void set(int64_t i) { bits[static_cast<size_t>(i / 8)] |= std::byte{1} << (i % 8); }
  void set_present(int64_t i) { presence[static_cast<size_t>(i / 512)] |= std::byte{1} << (i / 64 % 8); }
  bool operator==(const Signs&) const = default;
};

// An optimizer that votes, and its twin, which steps parameters of zero with lr 1 and no decay.
struct Model {
  std::vector<Tensor> params, zeros, grads;
  Optimizer votes, twin;

  static Config twin_of(Config config) {
    config.target = plainest_target(), config.threads = 1, config.memory = {};
    config.hyper.lr = 1, config.hyper.weight_decay = 0;
    return config;
  }

  Model(Rng& rng, const Config& config, DType grad)
      : votes(make_optimizer(config)), twin(make_optimizer(twin_of(config))) {
    const std::vector<std::vector<int64_t>> shapes = {{1},       {3},       {9, 63}, {5, 65},   {7, 255},  {0, 4},
                                                      {31, 257}, {3, 1000}, {20000}, {40, 256}, {2, 3, 77}};
    for (const std::vector<int64_t>& sizes : shapes) {
      params.emplace_back(kDTypes[rng.below(3)], sizes).randomize(rng);
      zeros.emplace_back(DType::kF32, sizes);
      grads.emplace_back(grad, sizes);
    }
    for (size_t i = 0; i < params.size(); ++i) {
      votes.add_param(0, params[i].view());
      twin.add_param(0, zeros[i].view());
    }
  }

  // Normal gradients with stretches of zeros; some parameters get none.
  std::vector<Gradient> new_gradients(Rng& rng) {
    std::vector<Gradient> out;
    for (Tensor& grad : grads) {
      bool zero = false;
      for (int64_t i = 0; i < grad.numel; ++i) {
        if (i % 128 == 0) zero = rng.chance(0.2);
        grad.set(i, zero || rng.chance(0.02) ? 0 : rng.normal());
      }
      out.push_back(rng.chance(0.15) ? Gradient{} : grad.gradient());
    }
    return out;
  }

  // The twin's step with these gradients gives the expected signs.
  Signs expected(const std::vector<Gradient>& gradients, bool zero_is_plus) {
    Signs out(votes);
    std::fill(out.bits.begin(), out.bits.end(), std::byte{0});
    std::fill(out.presence.begin(), out.presence.end(), std::byte{0});
    for (Tensor& zero : zeros) std::fill(zero.data.begin(), zero.data.end(), std::byte{0});
    twin.step(gradients);
    for (size_t p = 0; p < zeros.size(); ++p)
      for (int64_t i = 0; gradients[p].data && i < zeros[p].numel; ++i) {
        const float taken = -zeros[p].get(i);
        const int64_t at = votes.sign_offset(static_cast<int64_t>(p)) + i;
        if (taken > 0 || (taken == 0 && zero_is_plus)) out.set(at);
        if (taken != 0) out.set_present(at);
      }
    return out;
  }

  std::vector<std::byte> bytes_of_params() const {
    std::vector<std::byte> out;
    for (const Tensor& param : params) out.insert(out.end(), param.data.begin(), param.data.end());
    return out;
  }
};

// All rules, codecs and gradient types, twice, with random targets, threads and memory.
TEST(OptimizerSigns, BallotsAreThoseOfATwinThatSteps) {
  auto rng = seeded("ballots of optimizers", 95);
  const TemporaryDirectory directory;
  const std::vector<std::string> targets = cpu_targets();
  int64_t grid = 0, steps = 0, signs = 0, wrong_bits = 0, wrong_states = 0, moved = 0, paged = 0, streamed = 0,
          skipped = 0;
  for (const std::string rule : {"adam", "adamw", "lion", "sgd", "sgd plain", "sgd nesterov"})
    for (const std::string& codec : codec_names_of(rule.substr(0, rule.find(' ')), {.momentum = 0.9}))
      for (const DType grad : kDTypes)
        for (int round = 0; round < 2; ++round) {
          if (!in_share(grid++)) continue;
          Config config{.rule = rule.substr(0, rule.find(' ')), .state = codec};
          config.hyper = default_hyper(config.rule);
          config.hyper.lr = rng.uniform(), config.hyper.weight_decay = rng.uniform();
          config.hyper.maximize = rng.chance(0.3);
          if (config.rule == "sgd") config.hyper.momentum = rule == "sgd plain" ? 0 : 0.9;
          config.hyper.nesterov = rule == "sgd nesterov";
          config.target = targets[static_cast<size_t>(rng.below(static_cast<int64_t>(targets.size())))];
          config.threads = static_cast<int>(rng.between(1, 3));
          const bool limited = round == 1;
          if (limited) config.memory = {4096 * 12, directory.path(), -1, 4096 * 4};
          paged += limited;
          Model model(rng, config, grad);
          const std::vector<std::byte> before = model.bytes_of_params();
          for (int step = 0; step < 4; ++step, ++steps) {
            std::vector<Gradient> gradients = model.new_gradients(rng);
            const bool zero_is_plus = rng.chance(0.5);
            StepOptions options;
            Signs got(model.votes);
            if (step == 2) {  // a skipped step casts no votes
              Tensor& bad = model.grads[8];
              const float value = bad.get(777);
              bad.set(777, INFINITY);
              gradients[8] = bad.gradient();
              const auto states = snapshot(model.votes, {});
              const StepResult result = model.votes.ballots(gradients, got.buffer(), zero_is_plus, options);
              EXPECT_FALSE(result.applied);
              EXPECT_EQ(result.nonfinite_param, 8);
              wrong_states += snapshot(model.votes, {}) != states;
              for (const auto* of : {&got.bits, &got.presence})
                for (const std::byte byte : *of) wrong_bits += byte != std::byte{0};
              bad.set(777, double{value});
              ++skipped;
            }
            const StepResult result = model.votes.ballots(gradients, got.buffer(), zero_is_plus, options);
            EXPECT_TRUE(result.applied);
            wrong_bits += !(got == model.expected(gradients, zero_is_plus));
            signs += model.votes.sign_count();
            wrong_states += snapshot(model.votes, {}) != snapshot(model.twin, {});
          }
          moved += differing_bytes(before.data(), model.bytes_of_params().data(), static_cast<int64_t>(before.size()));
          const MemoryReport report = model.votes.report();
          streamed += report.read_bytes;
          EXPECT_EQ(report.steps, 4);
          EXPECT_EQ(report.skipped_steps, 1);
        }
  figure(
      "{} steps, {} signs ({} optimizers streamed {} bytes; {} steps skipped): {} ballots and {} states differ, {} "
      "bytes of parameters moved",
      steps, signs, paged, streamed, skipped, wrong_bits, wrong_states, moved);
  EXPECT_EQ(wrong_bits, 0);
  EXPECT_EQ(wrong_states, 0);
  EXPECT_EQ(moved, 0);
  EXPECT_GT(streamed, share_of(1000000));
}

// Applying one voter's ballot equals Lion (except for signs of 0: a bit has two values).
TEST(OptimizerSigns, OneVoterStepsAsLion) {
  auto rng = seeded("one voter", 96);
  int64_t compared = 0, differing = 0, zeros = 0;
  for (const double decay : {0., 0.1}) {
    Config config{.rule = "lion", .hyper = default_hyper("lion")};
    config.hyper.lr = 0.01, config.hyper.weight_decay = decay;
    config.threads = 2;
    Optimizer votes = make_optimizer(config), steps = make_optimizer(config);
    std::vector<Tensor> a, b, grads;
    for (const std::vector<int64_t>& sizes : {std::vector<int64_t>{300, 257}, {5000}, {3, 3}})
      for (const DType dtype : kDTypes) {
        a.emplace_back(dtype, sizes).randomize(rng);
        b.push_back(a.back());
        grads.emplace_back(DType::kF32, sizes);
      }
    for (size_t i = 0; i < a.size(); ++i) votes.add_param(0, a[i].view()), steps.add_param(0, b[i].view());
    for (int step = 0; step < 5; ++step) {
      std::vector<Gradient> gradients;
      for (Tensor& grad : grads) grad.randomize(rng), gradients.push_back(grad.gradient());
      Signs signs(votes);
      votes.ballots(gradients, signs.buffer());
      votes.apply_signs(signs.buffer());
      steps.step(gradients);
    }
    for (size_t i = 0; i < a.size(); ++i) {
      differing += differing_bytes(a[i].data.data(), b[i].data.data(), static_cast<int64_t>(a[i].data.size()));
      compared += static_cast<int64_t>(a[i].data.size());
      for (int64_t e = 0; e < grads[i].numel; ++e) zeros += grads[i].get(e) == 0;
    }
  }
  figure("{} bytes of parameters, {} zeros: {} differ", compared, zeros, differing);
  EXPECT_EQ(differing, 0);
}

// An element whose gradient was always zero has no presence and so stays in place; without presence it would drift.
TEST(OptimizerSigns, ZeroGradientsDoNotDrift) {
  constexpr int kSteps = 10000;
  int64_t drift = 0, control = 0;
  for (const std::string rule : {"lion", "sgd", "adamw"}) {
    Config config{.rule = rule, .hyper = default_hyper(rule)};
    config.hyper.lr = 1e-3, config.hyper.weight_decay = 0.1, config.hyper.momentum = rule == "sgd" ? 0.9 : 0;
    Optimizer optimizer = make_optimizer(config);
    Tensor still(DType::kF32, {2, 300}), live(DType::kBF16, {64}), still_grad(DType::kF32, {2, 300}),
        live_grad(DType::kF32, {64});
    auto rng = Rng(97);
    still.randomize(rng), live.randomize(rng), live_grad.randomize(rng);
    optimizer.add_param(0, still.view()), optimizer.add_param(0, live.view());
    const Tensor before = still, live_before = live;
    const Gradient gradients[] = {still_grad.gradient(), live_grad.gradient()};
    Signs signs(optimizer);
    for (int step = 0; step < kSteps; ++step) {
      optimizer.ballots(gradients, signs.buffer());
      optimizer.apply_signs(signs.buffer());
    }
    drift += differing_bytes(before.data.data(), still.data.data(), static_cast<int64_t>(before.data.size()));
    EXPECT_NE(live.data, live_before.data);
    optimizer.apply_signs({signs.bits.data(), nullptr, nullptr});
    control += differing_bytes(before.data.data(), still.data.data(), static_cast<int64_t>(before.data.size()));
  }
  figure("3 rules, {} steps of zero gradients with weight decay: {} bytes moved; one without presence: {}", kSteps,
         drift, control);
  EXPECT_EQ(drift, 0);
  EXPECT_GT(control, 1000);
}

// A late device with streaming state gives the same signs as host memory.
TEST(OptimizerSigns, OnADeviceThatRunsLate) {
  int64_t steps = 0, differing = 0, moved = 0;
  for (const int64_t device_bytes : {int64_t{-1}, int64_t{4096 * 16}}) {
    auto rng = seeded("ballots on a device", 98);
    Config config{.rule = "lion", .hyper = default_hyper("lion")};
    OptimizerOptions options;
    options.rule = "lion", options.memory.device = device_bytes;
    if (device_bytes >= 0) options.memory.chunk = 4096;
    auto fake = std::make_unique<fake::FakeBackend>(fake::FakeBackendOptions{.seed = 5});
    Device& device = *fake;
    Optimizer there = OptimizerEnv::make(options, system_env(), std::move(fake)), here = make_optimizer(config);
    GroupOptions group{.hyper = config.hyper, .min_quantized_numel = 0};
    there.add_group(group);
    void* const queue = device.make_queue();
    {
      DeviceTensors tensors(device, queue);
      std::vector<Tensor> params, grads;
      std::vector<void*> device_params, device_grads;
      for (const std::vector<int64_t>& sizes : {std::vector<int64_t>{40000}, {3, 257}, {70, 500}}) {
        params.emplace_back(DType::kF32, sizes).randomize(rng);
        grads.emplace_back(DType::kBF16, sizes);
      }
      for (size_t i = 0; i < params.size(); ++i) {
        device_params.push_back(tensors.put(params[i])), device_grads.push_back(tensors.put(grads[i]));
        here.add_param(0, params[i].view());
        there.add_param(0, {device_params[i], DType::kF32, params[i].sizes, {}});
      }
      Signs wanted(here), got(there);
      const auto bits = static_cast<int64_t>(got.bits.size()), presence = static_cast<int64_t>(got.presence.size());
      const DeviceBytes memory(device, MemoryKind::kDevice, bits + presence);
      for (int step = 0; step < 6; ++step, ++steps) {
        std::vector<Gradient> on_host, on_device;
        for (size_t i = 0; i < grads.size(); ++i) {
          grads[i].randomize(rng);
          tensors.set(device_grads[i], grads[i]);
          on_host.push_back(grads[i].gradient());
          on_device.push_back({device_grads[i], DType::kBF16, nullptr});
        }
        here.ballots(on_host, wanted.buffer());
        here.apply_signs(wanted.buffer());
        const SignBuffer out{memory.data(), memory.data() + bits, nullptr};
        StepOptions on_queue{.stream = queue};
        there.ballots(on_device, out, true, on_queue);
        there.apply_signs(out, queue);
        device.copy(queue, got.bits.data(), out.bits, bits);
        device.copy(queue, got.presence.data(), out.presence, presence);
        device.host_wait(device.record(queue));
        differing += !(got == wanted);
      }
      for (size_t i = 0; i < params.size(); ++i) {
        Tensor back = params[i];
        tensors.get(device_params[i], back);
        moved += differing_bytes(back.data.data(), params[i].data.data(), static_cast<int64_t>(back.data.size()));
      }
      if (device_bytes >= 0) {
        EXPECT_GT(there.report().moved_per_step, 0);
      }
      there.synchronize();
    }
  }
  figure("{} steps: {} ballots and {} bytes of parameters differ", steps, differing, moved);
  EXPECT_EQ(differing, 0);
  EXPECT_EQ(moved, 0);
}

TEST(OptimizerSigns, RefusesWhatMakesNoSense) {
  Optimizer optimizer = make_optimizer({});
  Tensor param(DType::kF32, {100}), grad(DType::kF32, {100});
  EXPECT_EQ(optimizer.sign_count(), 0);
  optimizer.apply_signs({});
  optimizer.add_param(0, param.view());
  optimizer.add_param(0, param.view());  // the same memory twice
  EXPECT_EQ(optimizer.sign_count(), 2048);
  EXPECT_EQ(optimizer.sign_offset(1), 1024);
  const Gradient gradients[] = {grad.gradient(), grad.gradient()};
  Signs signs(optimizer);
  int refused = 0;
  const auto refuses = [&](auto&& call, const char* part) {
    expect_refusal(call, part);
    ++refused;
  };
  const auto vote = [&](SignBuffer to, StepOptions options = {}) {
    return [&, to, options] { optimizer.ballots(gradients, to, true, options); };
  };
  std::byte* const bits = signs.bits.data();
  std::byte* const presence = signs.presence.data();
  int at_something;
  refuses(vote({nullptr, presence, nullptr}), "no memory for the bits of 2048 signs");
  refuses(vote({bits, nullptr, nullptr}), "no memory for the presence");
  refuses(vote({bits, presence, bits}), "zeros of a ballot");
  refuses(vote({bits, presence, nullptr}, {&at_something, 1.0, false}), "a stream for CPU parameters");
  refuses(vote({bits, presence, nullptr}, {nullptr, INFINITY, false}), "grad_scale");
  refuses([&] { optimizer.ballots({gradients, 1}, signs.buffer()); }, "got 1 gradients for 2 parameters");
  refuses([&] { optimizer.apply_signs({nullptr, presence, nullptr}); }, "no memory for the bits");
  refuses([&] { optimizer.apply_signs(signs.buffer(), &at_something); }, "a stream for CPU parameters");
  refuses([&] { optimizer.sign_offset(2); }, "parameter 2");
  EXPECT_EQ(optimizer.steps(0), 0);
  EXPECT_EQ(bits[0], std::byte{0x77}) << "what was refused has written nothing";
  // After a refusal, a step works as usual.
  grad.set(0, 1);
  optimizer.step(gradients);
  EXPECT_NE(param.get(0), 0.f);
  // Memory that two parameters share moves twice.
  Tensor shared(DType::kF32, {100});
  optimizer.rebind(0, shared.view()), optimizer.rebind(1, shared.view());
  std::fill(signs.bits.begin(), signs.bits.end(), std::byte{0xff});
  optimizer.set_threads(3);
  optimizer.apply_signs({bits, nullptr, nullptr});
  const auto lr = static_cast<float>(optimizer.hyper(0).lr);
  EXPECT_EQ(shared.get(7), -lr - lr);
  figure("{} calls refused", refused);
}

}  // namespace
}  // namespace lowtide::testing
