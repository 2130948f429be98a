// Shorthands for tests of the public interface.
#pragma once

#include "backend/catalog.h"
#include "lowtide/optimizer.h"
#include "optim/param_spec.h"
#include "support/compare.h"
#include "support/test.h"

namespace lowtide::testing {

struct Config {
  std::string rule = "adamw", state = "dynamic8", target = "";
  Hyper hyper = {};
  NonFinite nonfinite = NonFinite::kSkip;
  int threads = 1;
  int64_t min_quantized_numel = 0;
  Memory memory = {};
  std::string rounding = "auto";  // random bits depend on a parameter's number and steps
  std::string master = "";
};

inline Optimizer make_optimizer(const Config& setup) {
  OptimizerOptions options{.rule = setup.rule,
                           .nonfinite = setup.nonfinite,
                           .threads = setup.threads,
                           .cpu_target = setup.target,
                           .memory = setup.memory};
  Optimizer optimizer(options);
  GroupOptions group{.hyper = setup.hyper,
                     .state = setup.state,
                     .min_quantized_numel = setup.min_quantized_numel,
                     .rounding = setup.rounding,
                     .master = setup.master};
  optimizer.add_group(group);
  return optimizer;
}

// Returns the formats that a rule can have with these hyper-parameters: all, or all without 4-bit formats.
inline std::vector<std::string> codec_names_of(const std::string& rule, const Hyper& hyper) {
  std::vector<std::string> names;
  for (const std::string& name : codec_names()) try {
      const int64_t sizes[] = {1 << 13};
      make_spec(make_group({.hyper = hyper, .state = name}, find_rule(rule)), sizes, DType::kF32);
      names.push_back(name);
    } catch (const Error&) {
    }
  return names;
}

// A contiguous tensor that owns its memory.
struct Tensor {
  DType dtype = DType::kF32;
  std::vector<int64_t> sizes;
  int64_t numel = 1;
  std::vector<std::byte> data;

  Tensor(DType type, std::vector<int64_t> of_sizes) : dtype(type), sizes(std::move(of_sizes)) {
    for (const int64_t size : sizes) numel *= size;
    data.resize(static_cast<size_t>(numel * dtype_bytes(dtype)));
  }
  void set(int64_t i, double value) {
    if (dtype == DType::kF32) {
      const float x = static_cast<float>(value);
      std::memcpy(data.data() + i * 4, &x, 4);
    } else {
      const uint16_t h = dtype == DType::kBF16 ? bf16_nearest(value) : f16_nearest(value);
      std::memcpy(data.data() + i * 2, &h, 2);
    }
  }
  float get(int64_t i) const { return element(data.data(), dtype, i); }
  void randomize(Rng& rng, double scale = 1) {
    for (int64_t i = 0; i < numel; ++i) set(i, scale * rng.normal());
  }
  TensorView view() { return {data.data(), dtype, sizes, {}}; }
  Gradient gradient() const { return {data.data(), dtype, nullptr}; }
};

// Returns an optimizer of these parameters, which must outlive it.
inline Optimizer make_optimizer(const Config& setup, std::initializer_list<Tensor*> params) {
  Optimizer optimizer = make_optimizer(setup);
  for (Tensor* const param : params) optimizer.add_param(0, param->view());
  return optimizer;
}

// Steps an optimizer of one parameter.
inline StepResult take_step(Optimizer& optimizer, const Tensor& grad, const StepOptions& options = {}) {
  const Gradient gradient = grad.gradient();
  return optimizer.step({&gradient, 1}, options);
}

// Returns everything that a step may change, as bytes: the given parameters, step counts, and the stored state of all
// parameters, wherever it is.
inline std::vector<std::byte> snapshot(const Optimizer& optimizer, const std::vector<const Tensor*>& params) {
  std::vector<std::byte> out;
  const auto append = [&](const void* data, int64_t bytes) {
    const auto* begin = static_cast<const std::byte*>(data);
    if (bytes) out.insert(out.end(), begin, begin + bytes);
  };
  for (const Tensor* tensor : params) append(tensor->data.data(), static_cast<int64_t>(tensor->data.size()));
  for (int64_t i = 0; i < optimizer.param_count(); ++i) {
    const int64_t steps = optimizer.steps(i);
    append(&steps, sizeof steps);
    int k = 0;
    for (const StateView& state : optimizer.state(i)) {
      std::vector<std::byte> codes(static_cast<size_t>(state.numel * state.code_bits / 8));
      std::vector<float> scales(static_cast<size_t>(state.rows * state.scales_per_row));
      optimizer.read_state(i, k++, codes.data(), scales.data());
      append(codes.data(), static_cast<int64_t>(codes.size()));
      append(scales.data(), static_cast<int64_t>(scales.size() * sizeof(float)));
    }
  }
  return out;
}

// Returns the rule's defaults with one of its variants at random; SGD gets momentum.
inline Hyper random_variant(const std::string& rule, Rng& rng) {
  Hyper hyper = default_hyper(rule);
  if (rule == "sgd" || rule == "lars") hyper.momentum = 0.9;
  if (rule == "lamb" || rule == "lars") hyper.max_unorm = rng.chance(0.5) ? 0.1 : 0;
  if (rule == "rmsprop") hyper.momentum = rng.chance(0.5) ? 0.9 : 0, hyper.centered = rng.chance(0.5);
  if (rule == "adam" || rule == "adamw") hyper.amsgrad = rng.chance(0.4);
  if ((rule == "adam" || rule == "adamw") && !hyper.amsgrad) hyper.nesterov = rng.chance(0.4);
  if (rule == "schedulefree")
    hyper.warmup_steps = static_cast<double>(rng.below(6)), hyper.r = static_cast<double>(rng.below(3));
  if (rule == "ademamix") hyper.t_alpha = hyper.t_beta3 = static_cast<double>(rng.below(10));
  return hyper;
}

inline constexpr DType kDTypes[] = {DType::kF32, DType::kBF16, DType::kF16};

}  // namespace lowtide::testing
