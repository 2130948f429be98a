// The rules and codecs as data for host code: names, states, sizes, and each rule's arguments. Generated from rules.def
// and codecs.def through the portable kernels; nothing here is a second list.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "backend/limits.h"
#include "lowtide/hyper.h"

namespace lowtide {

// How one state of a parameter is stored: codes, and scales shared by blocks of them.
struct StateFormat {
  int code_bits = 32;  // 32, 16, 8, or 4: two per byte, the first in the low half
  int scales = 0;      // float32 per block of kBlockElements; the last block of a row may be short, and has equally
                       // many
  uint8_t zero = 0;    // the byte that the codes of an untouched state consist of

  // For elements that begin and end at whole bytes: if a byte holds two, rows have even length.
  int64_t code_bytes(int64_t elements) const { return elements * code_bits / 8; }
  int64_t scale_bytes(int64_t blocks) const { return blocks * scales * int64_t{sizeof(float)}; }
  int scale_block() const { return scales ? kBlockElements / scales : 0; }  // elements that share one
  bool operator==(const StateFormat&) const = default;
};

// Numbers that are carried from step to step beside states: the rule's own (portable/rules/hyper.h), followed, for
// rules that evaluate weights other than those they train, by the number of switches since the last step. While they
// are unknown, the first is kCarriedUnknown.
inline constexpr int kMaxCarriedByRule = 2, kMaxCarried = kMaxCarriedByRule + 1;
inline constexpr double kCarriedUnknown = -1;
inline constexpr double kMostSwitches = 0x1p52;  // half of the integers that a double can count

// The input of RuleInfo::make_args, as portable/rules/hyper.h says.
struct RuleInput {
#define LT_HYPER(type, name, value, range) type name = {};
#include "lowtide/hyper.def"
#undef LT_HYPER
  double norm[2] = {};
  double carried[kMaxCarried] = {kCarriedUnknown};
  double t = 1;
  bool first = false;
  double error = 0;
};

// A hyper-parameter that a rule reads, and its default for the rule.
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
  double (*decay)(const RuleInput&, int k);         // beta of state k's average: see portable/rules/hyper.h
  // The arguments depend on norms of the whole parameter (Backend::norms); these norms need the state.
  bool norms = false, norms_read_state = false;
  int family = 0;  // the rule that users name
  bool (*runs_for)(const Hyper&) = nullptr;
  // The hyper-parameters that a user-visible rule reads, beyond those that all rules read.
  std::vector<RuleHyper> hyper;
  std::string (*refusal)(const Hyper&) = nullptr;  // why it cannot run with these values; "": it can
  const char* too_coarse = nullptr;                // why its states cannot have 4 bits; nullptr: they can
  // Numbers carried from step to step beside states: names, the largest values of the rule's own, and the numbers after
  // step t, computed from those before it. switches: which of them counts switches, -1: none.
  std::vector<const char*> carried_names;
  double carried_most = 0;
  int switches = -1;
  double most_carried(int k) const { return k == switches ? kMostSwitches : carried_most; }
  void (*carry)(const RuleInput&, double (&after)[kMaxCarried]) = nullptr;
  // A rule whose weights are evaluated at another point than the gradients has arguments of a step that moves the
  // weights there, or back, by state 0 alone. nullptr: it is the same point.
  void (*make_average_args)(const RuleInput&, bool evaluating, void* args) = nullptr;
};

struct CodecInfo {
  const char* name;
  bool scaled;            // blocks share scales
  StateFormat format[2];  // [unsigned, signed]
  double error;           // bound of a typical value's relative rounding error, to nearest
  bool rounds;            // false: it stores every float32 exactly
  bool needs_random[2];   // only stochastic rounding preserves averages: [unsigned, signed]

  bool has_pairs() const { return format[0].code_bits == 4 || format[1].code_bits == 4; }  // two codes to a byte
};

// By number. Rules that users do not name (sgd_plain, adam_amsgrad, ...) are included.
const std::vector<RuleInfo>& rules();
const std::vector<CodecInfo>& codecs();

// Inline, because a step reads it several times for every tensor.
inline const RuleInfo& rule_info(int rule) {
  static const RuleInfo* const all = rules().data();
  return all[rule];
}
inline const CodecInfo& codec_info(int codec) {
  static const CodecInfo* const all = codecs().data();
  return all[codec];
}

// How 16-bit weights are made more precise, by number; 0 is "", none.
struct MasterInfo {
  const char* name;
  int residual_bits;  // for each weight
};
const std::vector<MasterInfo>& masters();
inline const MasterInfo& master_info(int master) { return masters()[static_cast<size_t>(master)]; }

inline int64_t residual_bytes(int master, int64_t elements) { return elements * master_info(master).residual_bits / 8; }

// Number of a rule or codec; throws kInvalidArgument, naming the valid ones.
int find_rule(const std::string& name);
int find_codec(const std::string& name);
int find_master(const std::string& name);  // "" is 0

// The format of state k of a rule, and the format of an item with a codec and a signedness.
inline const StateFormat& format_of(int rule, int codec, int k) {
  return codec_info(codec).format[(rule_info(rule).signed_mask >> k) & 1];
}
template <class Item>
const StateFormat& format_of(const Item& item) {
  return codec_info(item.codec).format[item.is_signed ? 1 : 0];
}

// How states are rounded: kAuto follows stochastic_states; otherwise none or all stochastically.
enum class RoundingMode { kAuto, kNearest, kStochastic };
// Throws kInvalidArgument, naming the valid ones.
RoundingMode find_rounding(const std::string& name);
// Bit k: state k of a step is rounded stochastically. kAuto: long averages and sums in any format, all averages and
// sums in a format with scales. A format that needs it gets it in every mode.
uint32_t stochastic_states(int rule, int codec, RoundingMode mode, const RuleInput& hyper);

// The rule that runs for a user-visible one: SGD without momentum has no state, Adam with amsgrad a third, ...
int effective_rule(int rule, const Hyper& hyper);
// True if such a rule has no state with some hyper-parameters. Its only state appears with others, and stays.
bool state_comes_and_goes(int rule);

}  // namespace lowtide
