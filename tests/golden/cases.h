// The cells of golden lists: rules with their options, places for state, and tensors of deterministic values.
#pragma once

#include "golden/golden.h"
#include "lowtide/optimizer.h"
#include "optim/hyper.h"
#include "support/half_reference.h"
#include "support/plainest_target.h"
#include "support/test.h"

namespace lowtide::testing {

inline constexpr DType kGoldenTypes[] = {DType::kF32, DType::kBF16, DType::kF16};
inline const char* short_name(DType dtype) {
  return dtype == DType::kF32 ? "f32" : dtype == DType::kBF16 ? "bf16" : "f16";
}

// A rule with options that make a difference in what it computes or stores.
struct GoldenRule {
  std::string name, rule;
  Hyper hyper;
};

// Sets the hyper-parameter of "name=value". Fails the test for another name.
inline void set_by_name(Hyper& hyper, const std::string& assignment) {
  const size_t at = assignment.find('=');
  int found = 0;
  for_each_hyper(hyper, [&]<class T>(const std::string& name, T& value) {
    if (name == assignment.substr(0, at)) value = static_cast<T>(std::stod(assignment.substr(at + 1))), ++found;
  });
  EXPECT_EQ(found, 1) << assignment;
}

// Every rule without options, each followed by its cases of list.txt.
inline std::vector<GoldenRule> golden_rules() {
  std::vector<GoldenRule> rules;
  const std::string cases = golden_section("cases").read();
  for (const std::string& rule : rule_names()) {
    Hyper hyper = default_hyper(rule);
    hyper.lr = 0.01, hyper.weight_decay = 0.05, hyper.trust_coefficient = 0.1, hyper.d0 = 1;  // moves 16-bit weights
    rules.push_back({rule, rule, hyper});
    std::istringstream lines(cases);
    for (std::string line; std::getline(lines, line);) {
      if (!line.starts_with(rule + "+")) continue;
      std::istringstream words(line);
      GoldenRule one{"", rule, hyper};
      std::string word, colon;
      for (words >> one.name >> colon; words >> word;) set_by_name(one.hyper, word);
      rules.push_back(one);
    }
  }
  return rules;
}

inline bool has_norms(const GoldenRule& rule) { return rule.rule == "lamb" || rule.rule == "lars"; }

// Where state lives and what computes. Device tiers are not here: tests/device and tests/memory compare them with the
// CPU.
struct GoldenPlace {
  std::string name, cpu_target;
  int threads;
  int64_t host, chunk;  // -1: no budget, else a disk behind it
};

inline std::vector<GoldenPlace> golden_places(int64_t some_bytes) {
  constexpr int64_t kPage = 4096, kChunk = 8 * kPage;
  const std::string best = cpu_targets().front(), plainest = plainest_target();
  return {{"RAM, " + plainest + ", 1 thread", plainest, 1, -1, 0},
          {"RAM, " + best, best, 0, -1, 0},
          {"RAM and disk, " + best + ", 2 threads", best, 2, some_bytes, 4 * kChunk},
          {"disk through 4 chunks, " + plainest + ", 1 thread", plainest, 1, 4 * kChunk, kChunk}};
}

inline OptimizerOptions options_at(const GoldenPlace& place, const std::string& disk) {
  OptimizerOptions options{.threads = place.threads, .cpu_target = place.cpu_target};
  options.memory.host = place.host, options.memory.chunk = place.chunk;
  if (place.host >= 0) options.memory.disk = disk;
  return options;
}

// Values over binades, by elements in row-major order; with gaps between rows where strides have them.
struct GoldenTensor {
  DType dtype;
  std::vector<int64_t> sizes, strides;
  std::vector<std::byte> data;

  GoldenTensor(DType type, std::vector<int64_t> of_sizes, std::vector<int64_t> of_strides, uint64_t seed, int low,
               int high, double zeros = 0)
      : dtype(type), sizes(std::move(of_sizes)), strides(std::move(of_strides)) {
    Rng rng(seed);
    int64_t numel = 1, room = 1;
    for (size_t d = 0; d < sizes.size(); ++d) {
      numel *= sizes[d];
      if (!strides.empty()) room += (sizes[d] - 1) * strides[d];
    }
    if (strides.empty()) room = numel;
    data.resize(static_cast<size_t>(room * dtype_bytes(dtype)));
    for (int64_t i = 0; i < numel; ++i) {
      const double value = rng.over_binades(low, high);
      set(offset(i), rng.chance(zeros) ? 0 : value);
    }
  }
  TensorView view() { return {data.data(), dtype, sizes, strides}; }
  Gradient gradient() const { return {data.data(), dtype, strides.empty() ? nullptr : strides.data()}; }

 private:
  int64_t offset(int64_t i) const {
    if (strides.empty()) return i;
    int64_t at = 0;
    for (size_t d = sizes.size(); d-- > 0; i /= sizes[d]) at += i % sizes[d] * strides[d];
    return at;
  }
  void set(int64_t at, double value) {
    if (dtype == DType::kF32) {
      const float x = static_cast<float>(value);
      std::memcpy(&data[static_cast<size_t>(at) * 4], &x, 4);
    } else {
      const uint16_t h = dtype == DType::kBF16 ? bf16_nearest(value) : f16_nearest(value);
      std::memcpy(&data[static_cast<size_t>(at) * 2], &h, 2);
    }
  }
};

// Steps and states of a parameter, as stored.
inline void add_state(GoldenHash& hash, const Optimizer& optimizer, int64_t param) {
  hash.add(optimizer.steps(param));
  int k = 0;
  for (const StateView& state : optimizer.state(param)) {
    std::vector<std::byte> codes(static_cast<size_t>((state.numel * state.code_bits + 7) / 8));
    std::vector<float> scales(static_cast<size_t>(state.rows * state.scales_per_row));
    optimizer.read_state(param, k++, codes.data(), scales.data());
    hash.add(codes), hash.add(scales);
  }
}

}  // namespace lowtide::testing
