// A parameter with its own gradient and state, for a backend to step: random values, any rule, codec, types and shape.
#pragma once

#include "backend/backend.h"
#include "backend/catalog.h"
#include "backend/random_keys.h"
#include "support/compare.h"
#include "support/test.h"

namespace lowtide::testing {

inline void put(std::vector<std::byte>& data, DType dtype, int64_t i, double value) {
  if (dtype == DType::kF32) {
    const float x = static_cast<float>(value);
    std::memcpy(data.data() + i * 4, &x, 4);
  } else {
    const uint16_t h = dtype == DType::kBF16 ? bf16_nearest(value) : f16_nearest(value);
    std::memcpy(data.data() + i * 2, &h, 2);
  }
}

struct StepCase {
  int rule, codec;
  DType param_dtype, grad_dtype;
  Layout layout;
  std::vector<std::byte> param, grad;
  std::vector<std::byte> codes[kMaxStates];
  std::vector<float> scales[kMaxStates];
  int master = 0;  // a number of masters.def
  std::vector<std::byte> residual;
  alignas(16) std::byte args[kArgsBytes] = {};
  double lr = 0.1, weight_decay = 1e-2;
  uint32_t stochastic = 0;  // as in StepItem
  uint64_t seed = 0;
  int64_t step = 0;
  ShardOrigin origin;

  StepCase(int of_rule, int of_codec, DType p, DType g, int64_t rows, int64_t row_length, Rng& rng)
      : rule(of_rule), codec(of_codec), param_dtype(p), grad_dtype(g) {
    if (codec_info(codec).has_pairs()) row_length += row_length % 2;  // such codes need rows of even length
    // If the root is zero and m is not, steps of m / eps must still fit fp16.
    for (const char* family : {"adam", "ademamix", "lamb", "prodigy", "rmsprop"})
      if (std::strncmp(rule_info(rule).name, family, std::strlen(family)) == 0) lr = 1e-6;
    const int64_t sizes[] = {rows, row_length};
    layout = Layout::make(sizes, {});
    const int64_t n = layout.numel, blocks_per_row = (row_length + kBlockElements - 1) / kBlockElements;
    param.resize(static_cast<size_t>(n * dtype_bytes(p)));
    for (int64_t i = 0; i < n; ++i) put(param, p, i, rng.over_binades(-8, 3));
    new_gradients(rng);
    const RuleInfo& info = rule_info(rule);
    const CodecInfo& as = codec_info(codec);
    for (int k = 0; k < info.states; ++k) {
      const StateFormat& format = format_of(rule, codec, k);
      codes[k].resize(static_cast<size_t>(format.code_bytes(n)));
      scales[k].resize(static_cast<size_t>(format.scales * rows * blocks_per_row));
    }
    // First moments span 60 binades from block to block, second moments their squares; 5 % of the blocks are zero.
    for (int64_t row = 0; row < rows; ++row)
      for (int64_t b = 0; b < blocks_per_row; ++b) {
        const int binade = static_cast<int>(rng.between(-60, -1));
        const double zero = rng.chance(0.05) ? 0 : 1;
        for (int k = 0; k < info.states; ++k) {
          const bool is_signed = (info.signed_mask >> k) & 1;
          const double unit = zero * std::ldexp(1 + rng.uniform(), is_signed ? binade : 2 * binade);
          const StateFormat& format = format_of(rule, codec, k);
          for (int s = 0; s < format.scales; ++s)
            scales[k][static_cast<size_t>((row * blocks_per_row + b) * format.scales + s)] =
                static_cast<float>(s ? unit * rng.uniform() : unit);
          const int64_t end = std::min(row_length, (b + 1) * kBlockElements);
          for (int64_t c = b * kBlockElements; c < end; ++c) {
            const int64_t i = row * row_length + c;
            const double value = unit * (rng.chance(0.05) ? 0 : rng.over_binades(-12, 0));
            if (as.scaled)
              codes[k][static_cast<size_t>(format.code_bytes(i))] = static_cast<std::byte>(rng.next());
            else
              put(codes[k], as.format[1].code_bits == 32 ? DType::kF32 : DType::kBF16, i,
                  is_signed ? value : std::fabs(value));
          }
        }
      }
    stochastic = static_cast<uint32_t>(rng.below(uint64_t{1} << kMaxStates));
    seed = rng.next();
    if (rng.chance(0.5)) origin.first_row = rng.between(0, 1) ? rng.between(0, int64_t{1} << 40) : rng.between(0, 1000);
    set_step(2);
  }

  // Residuals are random bits. Float32 parameters ignore them.
  void set_master(int kind, Rng& rng) {
    master = kind;
    residual.resize(static_cast<size_t>(residual_bytes(kind, layout.numel)));
    for (std::byte& byte : residual) byte = static_cast<std::byte>(rng.next());
  }

  // 5 % of the gradients are zero.
  void new_gradients(Rng& rng) {
    grad.resize(static_cast<size_t>(layout.numel * dtype_bytes(grad_dtype)));
    for (int64_t i = 0; i < layout.numel; ++i)
      put(grad, grad_dtype, i, rng.chance(0.05) ? 0 : rng.over_binades(-20, 2));
  }

  void set_step(int64_t t, bool first = false) {
    step = t;
    rule_info(rule).make_args({.lr = lr,
                               .beta1 = 0.9,
                               .beta2 = 0.99,
                               .beta3 = 0.9999,
                               .eps = 1e-8,
                               .weight_decay = weight_decay,
                               .momentum = 0.9,
                               .dampening = 0.1,
                               .alpha = rule_info(rule).name == std::string("ademamix") ? 5 : 0.99,
                               .initial_accumulator_value = 0.1,
                               .momentum_decay = 4e-3,
                               .d0 = 1e-3,
                               .d_coef = 1,
                               .growth_rate = 2,
                               .norm = {0, rule_info(rule).sums ? 0.1 : 0},
                               .t = static_cast<double>(t),
                               .first = first},
                              args);
  }

  StepItem item() {
    StepItem out;
    out.param = param.data(), out.grad = grad.data();
    out.param_layout = out.grad_layout = &layout;
    out.param_dtype = param_dtype, out.grad_dtype = grad_dtype;
    out.rule = rule, out.codec = codec;
    out.args = args;
    out.stochastic = stochastic;
    out.origin = origin;
    out.master.kind = master;
    out.master.residual = residual.empty() ? nullptr : residual.data();
    set_keys(seed, step, 0, out);
    for (int k = 0; k < kMaxStates; ++k) {
      out.codes[k] = codes[k].empty() ? nullptr : codes[k].data();
      out.scales[k] = scales[k].empty() ? nullptr : scales[k].data();
    }
    return out;
  }

  int64_t bytes() const {
    int64_t sum = static_cast<int64_t>(param.size() + residual.size());
    for (int k = 0; k < kMaxStates; ++k) sum += static_cast<int64_t>(codes[k].size() + scales[k].size() * 4);
    return sum;
  }
};

// The number of bytes of parameter, codes and scales that differ.
inline int64_t differing_bytes(const StepCase& a, const StepCase& b) {
  int64_t sum = differing_bytes(a.param.data(), b.param.data(), static_cast<int64_t>(a.param.size()));
  sum += differing_bytes(a.residual.data(), b.residual.data(), static_cast<int64_t>(a.residual.size()));
  for (int k = 0; k < kMaxStates; ++k) {
    sum += differing_bytes(a.codes[k].data(), b.codes[k].data(), static_cast<int64_t>(a.codes[k].size()));
    sum += differing_bytes(a.scales[k].data(), b.scales[k].data(), static_cast<int64_t>(a.scales[k].size() * 4));
  }
  return sum;
}

inline void step_all(Backend& backend, std::vector<StepCase>& cases, int threads) {
  std::vector<StepItem> items;
  for (StepCase& c : cases) items.push_back(c.item());
  backend.step(items, threads, false, nullptr);
}

}  // namespace lowtide::testing
