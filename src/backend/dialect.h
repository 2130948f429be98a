// The rules and codecs as data for host code: names, states, sizes, and each rule's arguments. Made from rules.def and
// codecs.def through the dialect itself; nothing here is a second list.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "backend/limits.h"

namespace lowtide {

// The rule-independent input of RuleInfo::make_args; see portable/rules/hyper.h.
struct RuleHyper {
  double lr = 0, beta1 = 0, beta2 = 0, beta3 = 0, eps = 0, weight_decay = 0, momentum = 0, dampening = 0;
  bool nesterov = false;
  double alpha = 0, t_alpha = 0, t_beta3 = 0, lr_decay = 0, initial = 0, momentum_decay = 0;
  double t = 1;        // number of this step for this parameter, from 1
  bool first = false;  // the state holds nothing yet
};

struct RuleInfo {
  const char* name;
  int states;
  unsigned signed_mask;  // bit k: state k takes both signs
  std::vector<const char*> state_names;
  void (*make_args)(const RuleHyper&, void* args);  // writes args_bytes
  size_t args_bytes;                                // at most kArgsBytes
  double (*decay)(const RuleHyper&, int k);         // beta of state k's average: see portable/rules/hyper.h
};

struct CodecInfo {
  const char* name;
  int code_bytes;
  bool scaled;            // one float32 scale per block
  unsigned zero_code[2];  // code of 0: [unsigned, signed]; memory starts with it
  bool rounds;            // or stores every float32 as it is
  bool needs_random[2];   // only stochastic rounding keeps averages in it: [unsigned, signed]
};

// By number. Rules that users do not name (sgd_plain, adam_amsgrad, ...) are included.
const std::vector<RuleInfo>& rules();
const std::vector<CodecInfo>& codecs();

// Number of a rule or codec; throws kInvalidArgument naming those there are.
int find_rule(const std::string& name);
int find_codec(const std::string& name);

// How states are rounded: those of long averages stochastically (kAuto), none or all.
enum class RoundingMode { kAuto, kNearest, kStochastic };
// Throws kInvalidArgument naming those there are.
RoundingMode find_rounding(const std::string& name);
// Bit k: state k of a step holds a long average.
uint32_t long_averages(int rule, const RuleHyper& hyper);
// Bit k: state k of a step is rounded stochastically.
uint32_t stochastic_states(int rule, int codec, RoundingMode mode, uint32_t long_averages);

// What of the hyper-parameters decides which states a rule has.
struct RuleVariant {
  bool momentum = false, nesterov = false, amsgrad = false, centered = false;
};
// The rule that runs for one that users name: SGD without momentum has no state, Adam with amsgrad a third, ... Throws
// kInvalidArgument for a variant that does not exist.
int effective_rule(int rule, const RuleVariant& variant);

}  // namespace lowtide
