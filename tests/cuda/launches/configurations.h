// The configurations of steps whose speed the model tells (tools/step_model.py).
#pragma once

#include <string>
#include <vector>

#include "backend/catalog.h"
#include "lowtide/tensor.h"
#include "support/tested_rules.h"

namespace lowtide {

// Steps; the passes over gradients before them: norms of whole parameters, and the search for what is not finite.
enum class Pass { kStep, kNorms, kSearch };

struct Configuration {
  int rule, codec;
  DType param = DType::kBF16, grad = DType::kBF16;
  int master = 0;
  RoundingMode rounding = RoundingMode::kAuto;
  int64_t rows = 1, row_length = 8192;  // one tile
  int shift = 0;                        // elements behind aligned ones
  std::string what = "-";               // how it differs from the usual one of its kind
  Pass pass = Pass::kStep;

  std::string name() const { return std::string(rule_info(rule).name) + " " + codec_info(codec).name + " " + what; }
};

inline std::vector<Configuration> configurations() {
  std::vector<Configuration> all;
  // Every rule in every format.
  for (const int rule : testing::tested_rules())
    for (int codec = 0; codec < static_cast<int>(codecs().size()); ++codec)
      if (rule_info(rule).states || codec == 0) all.push_back({rule, codec});
  // Types of the parameter and its gradient, for the rules that are used most.
  constexpr std::pair<DType, DType> kPairs[] = {
      {DType::kF32, DType::kF32}, {DType::kF32, DType::kBF16}, {DType::kF16, DType::kF16}, {DType::kBF16, DType::kF32}};
  for (const char* rule : {"adamw", "lion", "sgd"}) {
    if (!testing::is_tested(find_rule(rule))) continue;
    for (int codec = 0; codec < static_cast<int>(codecs().size()); ++codec)
      for (const auto& [param, grad] : kPairs) all.push_back({find_rule(rule), codec, param, grad});
  }
  // Masters.
  for (const char* rule : {"adamw", "lion"}) {
    if (!testing::is_tested(find_rule(rule))) continue;
    for (int master = 1; master < static_cast<int>(masters().size()); ++master)
      for (const char* codec : {"dynamic8", "fp32"})
        for (const DType grad : {DType::kBF16, DType::kF32})
          all.push_back({find_rule(rule), find_codec(codec), DType::kBF16, grad, master});
  }
  for (const char* codec : {"dynamic8", "bf16", "float8"}) {
    const Configuration usual{find_rule("adamw"), find_codec(codec)};
    const auto add = [&](const char* what, auto&& change) {
      all.push_back(usual);
      all.back().what = what;
      change(all.back());
    };
    // Roundings.
    if (codec_info(usual.codec).needs_random[1]) continue;
    add("nearest", [](Configuration& c) { c.rounding = RoundingMode::kNearest; });
    add("stochastic", [](Configuration& c) { c.rounding = RoundingMode::kStochastic; });
  }
  // Rows of any length, and memory that is not aligned.
  for (const char* codec : {"dynamic8", "fp32"}) {
    const Configuration usual{find_rule("adamw"), find_codec(codec)};
    const auto add = [&](const char* what, int64_t rows, int64_t length, int shift) {
      all.push_back(usual);
      Configuration& c = all.back();
      c.what = what, c.rows = rows, c.row_length = length, c.shift = shift;
    };
    add("rows_of_1000", 8, 1000, 0);
    add("rows_of_1001", 8, 1001, 0);
    add("rows_of_100", 32, 100, 0);
    add("rows_of_768", 10, 768, 0);
    add("misaligned", 1, 8192, 1);
  }
  // Other passes.
  for (const int rule : testing::tested_rules())
    for (int codec = 0; codec < static_cast<int>(codecs().size()); ++codec)
      if (rule_info(rule).norms && (rule_info(rule).norms_read_state || codec == 0)) {
        all.push_back({rule, codec});
        all.back().pass = Pass::kNorms, all.back().what = "norms";
      }
  for (const DType grad : {DType::kBF16, DType::kF16, DType::kF32}) {
    all.push_back({effective_rule(find_rule("sgd"), {}), 0, grad, grad});
    all.back().pass = Pass::kSearch, all.back().what = "search";
  }
  return all;
}

}  // namespace lowtide
