#include "backend/catalog.h"

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <iterator>
#include <string_view>
#include <type_traits>

#include "core/error.h"
#include "lowtide/optimizer.h"

namespace lowtide {
namespace host {
namespace {
#include "portable/portable.h"

template <class R>
constexpr int kNumber = -1;  // the rule's number in rules.def

// Replaces {name of a hyper-parameter} in the text with its value, and {rule} with the rule's name.
std::string filled_in(std::string_view text, const char* rule, const Hyper& h) {
  std::string out;
  for (size_t open; (open = text.find('{')) != text.npos;) {
    const size_t close = text.find('}', open);
    const std::string_view name = text.substr(open + 1, close - open - 1);
    out += text.substr(0, open);
    text.remove_prefix(close + 1);
    if (name == "rule") out += rule;
    char value[32];
#define LT_HYPER(type, field, standard, range) \
  if (name == #field) std::snprintf(value, sizeof value, "%g", static_cast<double>(h.field)), out += value;
#include "lowtide/hyper.def"
#undef LT_HYPER
  }
  return out.append(text);
}

template <class R>
std::vector<RuleHyper> hyper_of() {
  std::vector<RuleHyper> all;
  for (const HyperUse& use : R::kHyper) {
    bool found = false;
#define LT_HYPER(type, field, standard, range) \
  if (std::string_view(use.name) == #field)    \
    found = true, all.push_back({#field, use.value < 0 ? static_cast<double>(standard) : use.value});
#include "lowtide/hyper.def"
#undef LT_HYPER
    if (!found) fail(ErrorKind::kInvalidArgument, "a rule reads '%s', which lowtide/hyper.def lacks", use.name);
  }
  return all;
}

template <class R>
std::string refusal(const Hyper& h) {
  if constexpr (requires { R::refuses(h); })
    if (const char* const text = R::refuses(h)) return filled_in(text, rule_info(kNumber<R>).name, h);
  return "";
}

template <class R>
RuleInfo make_rule(const char* name) {
  static_assert(sizeof(typename R::Args) <= kArgsBytes && R::kStates <= kMaxStates);
  RuleInfo info{};
  info.name = name;
  info.states = R::kStates, info.signed_mask = R::kSigned;
  info.state_names = {R::kStateNames, R::kStateNames + R::kStates};
  info.make_args = [](const lowtide::RuleInput& h, void* out) {
    const typename R::Args args = R::args(h);
    std::memcpy(out, &args, sizeof args);
  };
  info.args_bytes = sizeof(typename R::Args);
  info.decay = [](const lowtide::RuleInput& h, int k) { return R::decay(h, k); };
  info.norms = kHasNorms<R>;
  info.sums = kHasSums<R>;
  if constexpr (kHasNorms<R>) info.norms_read_state = R::kNormsReadState;
  if constexpr (requires { typename R::Family; }) {
    info.family = kNumber<typename R::Family>;
    info.runs_for = [](const Hyper& h) { return R::runs_for(h); };
  } else {
    static_assert(
        requires { R::kHyper; }, "a rule that users name lists the hyper-parameters it reads in kHyper");
    info.family = kNumber<R>;
    info.runs_for = [](const Hyper&) { return true; };
    info.hyper = hyper_of<R>();
  }
  info.refusal = refusal<R>;
  if constexpr (requires { R::kTooCoarse; }) info.too_coarse = R::kTooCoarse;
  if constexpr (requires { R::kCarriedNames; }) {
    info.carried_names = {std::begin(R::kCarriedNames), std::end(R::kCarriedNames)};
    info.carried_most = R::kCarriedMost;
    info.carry = [](const lowtide::RuleInput& h, double(&after)[kMaxCarried]) {
      double of_rule[std::size(R::kCarriedNames)] = {};
      R::carry(h, of_rule);
      std::fill(std::begin(after), std::end(after), 0.0);
      std::copy(std::begin(of_rule), std::end(of_rule), after);
    };
    if constexpr (requires { R::kCarriedSigned; }) info.carried_signed = R::kCarriedSigned;
  }
  if constexpr (requires(const lowtide::RuleInput& h) { R::average_args(h, true); }) {
    info.switches = static_cast<int>(info.carried_names.size());
    info.carried_names.push_back("switches");
    info.make_average_args = [](const lowtide::RuleInput& h, bool evaluating, void* out) {
      const typename R::Args args = R::average_args(h, evaluating);
      std::memcpy(out, &args, sizeof args);
    };
  }
  return info;
}

template <class C, bool kSigned>
StateFormat state_format() {
  using Code = CodeOf<C, kSigned>;
  StateFormat format{kCodeBits<Code>, kScales<C, kSigned>, 0};
  if constexpr (kSigned && requires { C::kSignedZero; })
    format.zero = kCodesOf<Code> == 2 ? C::kSignedZero | C::kSignedZero << 4 : C::kSignedZero;
  return format;
}

template <class C>
CodecInfo make_codec() {
  CodecInfo info{C::kName,
                 C::kScaled,
                 {state_format<C, false>(), state_format<C, true>()},
                 static_cast<double>(C::kError),
                 !std::is_same_v<CodeOf<C, true>, float>,
                 {false, false}};
  if constexpr (requires { C::kNeedsRandom; })
    for (int is_signed = 0; is_signed < 2; ++is_signed) info.needs_random[is_signed] = C::kNeedsRandom[is_signed];
  return info;
}

static_assert(kBlock == kBlockElements);
// The numbers in the lists must be positions in the tables below.
constexpr int kRuleNumbers[] = {
#define LT_RULE(number, name, Rule) number,
#include "portable/rules.def"
#undef LT_RULE
};
constexpr int kCodecNumbers[] = {
#define LT_CODEC(number, name, Codec) number,
#include "portable/codecs.def"
#undef LT_CODEC
};
template <int n>
constexpr bool counts_up(const int (&numbers)[n]) {
  for (int i = 0; i < n; ++i)
    if (numbers[i] != i) return false;
  return true;
}
constexpr int kMasterNumbers[] = {
    0,
#define LT_MASTER(number, name, bits) number,
#include "portable/masters.def"
#undef LT_MASTER
};
static_assert(counts_up(kMasterNumbers), "masters.def is numbered 1, 2, 3, ...");
static_assert(counts_up(kRuleNumbers) && counts_up(kCodecNumbers),
              "rules.def and codecs.def are numbered 0, 1, 2, ...");
// LT_NORM_RULE and LT_SUM_RULE list exactly the rules with terms().
#define LT_RULE(number, name, Rule) \
  static_assert(!kHasNorms<Rule> && !kHasSums<Rule>, #name " has terms(), wanted LT_NORM_RULE or LT_SUM_RULE");
#define LT_NORM_RULE(number, name, Rule) static_assert(kHasNorms<Rule>, #name " has no norms, wanted another macro");
#define LT_SUM_RULE(number, name, Rule) static_assert(kHasSums<Rule>, #name " has no sums, wanted another macro");
#include "portable/rules.def"
#undef LT_RULE
#define LT_RULE(number, name, Rule) \
  template <>                       \
  constexpr int kNumber<Rule> = number;
#include "portable/rules.def"
#undef LT_RULE
}  // namespace
}  // namespace host

const std::vector<RuleInfo>& rules() {
  static const std::vector<RuleInfo> all = {
#define LT_RULE(number, name, Rule) host::make_rule<host::Rule>(#name),
#include "portable/rules.def"
#undef LT_RULE
  };
  return all;
}

const std::vector<CodecInfo>& codecs() {
  static const std::vector<CodecInfo> all = {
#define LT_CODEC(number, name, Codec) host::make_codec<host::Codec>(),
#include "portable/codecs.def"
#undef LT_CODEC
  };
  return all;
}

const std::vector<MasterInfo>& masters() {
  static const std::vector<MasterInfo> all = {
      {"", 0},
#define LT_MASTER(number, name, bits) {#name, bits},
#include "portable/masters.def"
#undef LT_MASTER
  };
  return all;
}

int effective_rule(int rule, const Hyper& hyper) {
  for (size_t i = 0; i < rules().size(); ++i)
    if (const RuleInfo& one = rules()[i]; one.family == rule && static_cast<int>(i) != rule && one.runs_for(hyper))
      return static_cast<int>(i);
  return rule;
}

bool state_comes_and_goes(int rule) {
  return std::any_of(rules().begin(), rules().end(),
                     [&](const RuleInfo& one) { return one.family == rule && one.states == 0; });
}

RoundingMode find_rounding(const std::string& name) {
  if (name == "auto") return RoundingMode::kAuto;
  if (name == "nearest") return RoundingMode::kNearest;
  if (name == "stochastic") return RoundingMode::kStochastic;
  fail(ErrorKind::kInvalidArgument, "got rounding '%s', wanted one of: auto, nearest, stochastic", name.c_str());
}

uint32_t stochastic_states(int rule, int codec, RoundingMode mode, const RuleInput& hyper) {
  const RuleInfo& of = rule_info(rule);
  const CodecInfo& as = codec_info(codec);
  uint32_t states = 0;
  for (int k = 0; as.rounds && k < of.states; ++k) {
    const bool is_signed = ((of.signed_mask >> k) & 1) != 0;
    const double beta = of.decay(hyper, k);
    const bool is_biased = beta >= host::kStochasticBeta || (as.scaled && beta > 0);
    const bool is_stochastic =
        mode == RoundingMode::kStochastic || as.needs_random[is_signed] || (mode == RoundingMode::kAuto && is_biased);
    states |= uint32_t{is_stochastic} << k;
  }
  return states;
}

namespace {

// Returns the rules that users name and that have kernels in this library, or that were left out of its build.
std::vector<std::string> names_of(bool built) {
  bool has[std::size(host::kRuleNumbers)] = {};
#define LT_RULE(number, name, Rule) has[number] = true;
#include "backend/built_rules.def"
#undef LT_RULE
  std::vector<std::string> names;
  for (size_t rule = 0; rule < rules().size(); ++rule)
    if (rules()[rule].family == static_cast<int>(rule) && has[rule] == built) names.emplace_back(rules()[rule].name);
  return names;
}

std::string joined(const std::vector<std::string>& names, const char* with) {
  std::string all;
  for (const std::string& name : names) all += (all.empty() ? "" : with) + name;
  return all;
}

}  // namespace

std::vector<std::string> rule_names() {
  static const std::vector<std::string> names = names_of(true);
  return names;
}

std::vector<std::string> codec_names() {
  std::vector<std::string> names;
  for (const CodecInfo& codec : codecs()) names.emplace_back(codec.name);
  return names;
}

namespace {

// Returns the index in `table` of the entry with the user-visible name `name`; `names` are the valid names.
template <class Info>
int find(const char* what, const std::string& name, const std::vector<Info>& table,
         const std::vector<std::string>& names) {
  if (std::find(names.begin(), names.end(), name) != names.end())
    for (size_t i = 0; i < table.size(); ++i)
      if (name == table[i].name) return static_cast<int>(i);
  fail(ErrorKind::kInvalidArgument, "got %s '%s', wanted one of: %s", what, name.c_str(), joined(names, ", ").c_str());
}

}  // namespace

int find_rule(const std::string& name) {
  static const std::vector<std::string> left_out = names_of(false);
  if (std::find(left_out.begin(), left_out.end(), name) != left_out.end())
    fail(ErrorKind::kUnsupported,
         "got rule '%s', which this library was built without: LOWTIDE_RULES was '%s'; configure it with "
         "-DLOWTIDE_RULES='%s;%s'",
         name.c_str(), joined(rule_names(), ";").c_str(), joined(rule_names(), ";").c_str(), name.c_str());
  return find("rule", name, rules(), rule_names());
}
int find_master(const std::string& name) {
  if (name.empty()) return 0;
  std::vector<std::string> names;
  for (const MasterInfo& master : masters())
    if (*master.name) names.emplace_back(master.name);
  return find("master", name, masters(), names);
}
int find_codec(const std::string& name) { return find("state", name, codecs(), codec_names()); }

std::vector<std::string> state_names(const std::string& rule) {
  const RuleInfo& info = rule_info(find_rule(rule));
  return {info.state_names.begin(), info.state_names.end()};
}

}  // namespace lowtide
