// The rules and codecs as data for host code: names, states, sizes and each rule's arguments. Everything is generated
// from rules.def and codecs.def through the portable kernels, so there is no second list.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "backend/limits.h"
#include "lowtide/hyper.h"

namespace lowtide {

// How one state of a parameter is stored: as codes, and as scales that blocks of codes share.
struct StateFormat {
  int code_bits = 32;  // 32, 16, 8 or 4; 4-bit codes have the first of two in the low half of a byte
  int scales = 0;      // number of float32 per block of kBlockElements; a short last block has as many
  uint8_t zero = 0;    // the byte that fills the codes of an untouched state

  // Returns the size of the codes of elements that fill whole bytes: if a byte holds two codes, rows have even length.
  int64_t code_bytes(int64_t elements) const { return elements * code_bits / 8; }
  int64_t scale_bytes(int64_t blocks) const { return blocks * scales * int64_t{sizeof(float)}; }
  int scale_block() const { return scales ? kBlockElements / scales : 0; }  // number of elements that share a scale
  bool operator==(const StateFormat&) const = default;
};

// Numbers that are carried from step to step in addition to states. The rule's own numbers (portable/rules/hyper.h)
// come first. For rules that evaluate other weights than they train, the number of switches since the last step
// follows. While the numbers are unknown, the first is kCarriedUnknown.
inline constexpr int kMaxCarriedByRule = 4, kMaxCarried = kMaxCarriedByRule + 1;
inline constexpr double kCarriedUnknown = -1;
inline constexpr double kMostSwitches = 0x1p52;  // half of the range in which a double counts

// The input of RuleInfo::make_args; see portable/rules/hyper.h.
struct RuleInput {
#define LT_HYPER(type, name, value, range) type name = {};
#include "lowtide/hyper.def"
#undef LT_HYPER
  double norm[2] = {};  // or sums
  double carried[kMaxCarried] = {kCarriedUnknown};
  double t = 1;
  bool first = false;
  double error = 0;
};

// A hyper-parameter that a rule reads, and its default for this rule.
struct RuleHyper {
  const char* name;
  double value;
};

struct RuleInfo {
  const char* name;
  int states;
  unsigned signed_mask;  // bit k: state k is signed
  std::vector<const char*> state_names;
  void (*make_args)(const RuleInput&, void* args);  // writes args_bytes
  size_t args_bytes;                                // at most kArgsBytes
  double (*decay)(const RuleInput&, int k);         // the beta of state k's average (portable/rules/hyper.h)
  // norms: the arguments depend on norms of the whole parameter (Backend::norms). norms_read_state: the norms need
  // states.
  bool norms = false, norms_read_state = false;
  bool sums = false;  // they depend on sums of terms over all parameters (Backend::sum_terms)
  int family = 0;     // the rule that users name
  bool (*runs_for)(const Hyper&) = nullptr;
  // The hyper-parameters that a user-visible rule reads, beyond those that all rules read.
  std::vector<RuleHyper> hyper;
  std::string (*refusal)(const Hyper&) = nullptr;  // why the rule cannot run with these values; "" if it can
  const char* too_coarse = nullptr;                // why its states cannot have 4 bits; nullptr if they can
  // The numbers that are carried from step to step in addition to states: their names, the largest value of the rule's
  // own numbers, and a function that computes the numbers after step t from the numbers before it. `switches` is the
  // index of the number that counts switches, or -1.
  std::vector<const char*> carried_names;
  double carried_most = 0;
  unsigned carried_signed = 0;  // bit k: number k may be negative
  int switches = -1;
  double most_carried(int k) const { return k == switches ? kMostSwitches : carried_most; }
  double least_carried(int k) const { return (carried_signed >> k) & 1 ? -carried_most : 0; }
  void (*carry)(const RuleInput&, double (&after)[kMaxCarried]) = nullptr;
  // For a rule whose weights and gradients are evaluated at different points, makes the arguments of a step that moves
  // the weights to the other point, or back, using only state 0. nullptr if there is only one point.
  void (*make_average_args)(const RuleInput&, bool evaluating, void* args) = nullptr;
};

struct CodecInfo {
  const char* name;
  bool scaled;            // blocks share scales
  StateFormat format[2];  // [unsigned, signed]
  double error;           // bound of a typical value's relative error when rounded to nearest
  bool rounds;            // false if it stores every float32 exactly
  bool needs_random[2];   // true if only stochastic rounding preserves averages: [unsigned, signed]

  bool has_pairs() const { return format[0].code_bits == 4 || format[1].code_bits == 4; }  // two codes per byte
};

// All rules and codecs, indexed by number, including rules that users do not name (sgd_plain, adam_amsgrad, ...).
const std::vector<RuleInfo>& rules();
const std::vector<CodecInfo>& codecs();

// Inline, because a step calls this several times for every tensor.
inline const RuleInfo& rule_info(int rule) {
  static const RuleInfo* const all = rules().data();
  return all[rule];
}
inline const CodecInfo& codec_info(int codec) {
  static const CodecInfo* const all = codecs().data();
  return all[codec];
}

// How 16-bit weights get more precision, indexed by number; number 0 is "" (none).
struct MasterInfo {
  const char* name;
  int residual_bits;  // per weight
};
const std::vector<MasterInfo>& masters();
inline const MasterInfo& master_info(int master) { return masters()[static_cast<size_t>(master)]; }

inline int64_t residual_bytes(int master, int64_t elements) { return elements * master_info(master).residual_bits / 8; }

// Return the number of a rule, codec or master. Throw kInvalidArgument, with the valid names, for other names.
int find_rule(const std::string& name);
int find_codec(const std::string& name);
int find_master(const std::string& name);  // "" has number 0

// Return the format of state k of a rule, and the format of an item that has a codec and a signedness.
inline const StateFormat& format_of(int rule, int codec, int k) {
  return codec_info(codec).format[(rule_info(rule).signed_mask >> k) & 1];
}
template <class Item>
const StateFormat& format_of(const Item& item) {
  return codec_info(item.codec).format[item.is_signed ? 1 : 0];
}

// How states are rounded: kAuto follows stochastic_states(); otherwise none or all are rounded stochastically.
enum class RoundingMode { kAuto, kNearest, kStochastic };
// Throws kInvalidArgument for an unknown name; the message lists the valid names.
RoundingMode find_rounding(const std::string& name);
// Returns a mask: bit k is set if state k of a step is rounded stochastically. kAuto selects long averages and sums in
// any format, and all averages and sums in a format with scales. A format that needs it is rounded stochastically in
// every mode.
uint32_t stochastic_states(int rule, int codec, RoundingMode mode, const RuleInput& hyper);

// Returns the rule that runs for a user-visible rule: for example, SGD without momentum has no state, and Adam with
// amsgrad has a third state.
int effective_rule(int rule, const Hyper& hyper);
// Returns true if a user-visible rule has no state with some hyper-parameters. Its only state appears with other
// hyper-parameters and then stays.
bool state_comes_and_goes(int rule);

}  // namespace lowtide
