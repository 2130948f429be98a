#include "backend/catalog.h"

#include <bit>
#include <cstring>
#include <type_traits>

#include "core/error.h"
#include "lowtide/optimizer.h"

namespace lowtide {
namespace host {
namespace {
#include "portable/portable.h"

// Two of one definition: the host's and the portable kernels' own.
RuleInput input_of(const lowtide::RuleInput& h) { return std::bit_cast<RuleInput>(h); }

template <class R>
constexpr bool reads_state() {
  if constexpr (kHasNorms<R>)
    return R::kNormsReadState;
  else
    return false;
}

template <class R>
RuleInfo make_rule(const char* name) {
  static_assert(sizeof(typename R::Args) <= kArgsBytes && R::kStates <= kMaxStates);
  return RuleInfo{name,
                  R::kStates,
                  R::kSigned,
                  {R::kStateNames, R::kStateNames + R::kStates},
                  [](const lowtide::RuleInput& h, void* out) {
                    const typename R::Args args = R::args(input_of(h));
                    std::memcpy(out, &args, sizeof args);
                  },
                  sizeof(typename R::Args),
                  [](const lowtide::RuleInput& h, int k) { return R::decay(input_of(h), k); },
                  kHasNorms<R>,
                  reads_state<R>()};
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
// The numbers of the lists are positions in the tables below.
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
// Rules with terms() are LT_NORM_RULE, no others.
#define LT_RULE(number, name, Rule) static_assert(!kHasNorms<Rule>, #name " has terms(), wanted LT_NORM_RULE");
#define LT_NORM_RULE(number, name, Rule) static_assert(kHasNorms<Rule>, #name " has no terms(), wanted LT_RULE");
#include "portable/rules.def"
#undef LT_RULE
enum : int {
#define LT_RULE(number, name, Rule) k_##name = number,
#include "portable/rules.def"
#undef LT_RULE
};
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

int effective_rule(int rule, const RuleVariant& variant) {
  using namespace host;
  const bool amsgrad = variant.amsgrad, nesterov = variant.nesterov;
  LT_REQUIRE(!(amsgrad && nesterov) || (rule != k_adam && rule != k_adamw),
             "got amsgrad and nesterov for %s, wanted one of them at most", rule_info(rule).name);
  switch (rule) {
    case k_adam:
      return amsgrad ? k_adam_amsgrad : nesterov ? k_adam_nesterov : k_adam;
    case k_adamw:
      return amsgrad ? k_adamw_amsgrad : nesterov ? k_adamw_nesterov : k_adamw;
    case k_sgd:
      return variant.momentum ? k_sgd : k_sgd_plain;
    case k_lars:
      return !variant.momentum ? k_lars_plain : variant.clips ? k_lars_clipped : k_lars;
    case k_rmsprop:
      if (variant.momentum) return variant.centered ? k_rmsprop_centered_momentum : k_rmsprop_momentum;
      return variant.centered ? k_rmsprop_centered : k_rmsprop;
  }
  return rule;
}

RoundingMode find_rounding(const std::string& name) {
  if (name == "auto") return RoundingMode::kAuto;
  if (name == "nearest") return RoundingMode::kNearest;
  if (name == "stochastic") return RoundingMode::kStochastic;
  fail(ErrorKind::kInvalidArgument, "got rounding '%s', wanted one of: auto, nearest, stochastic", name.c_str());
}

uint32_t long_averages(int rule, const RuleInput& hyper) {
  const RuleInfo& of = rule_info(rule);
  uint32_t states = 0;
  for (int k = 0; k < of.states; ++k)
    if (of.decay(hyper, k) >= host::kStochasticBeta) states |= uint32_t{1} << k;
  return states;
}

uint32_t stochastic_states(int rule, int codec, RoundingMode mode, uint32_t long_averages) {
  const RuleInfo& of = rule_info(rule);
  const CodecInfo& as = codec_info(codec);
  const uint32_t all = (uint32_t{1} << of.states) - 1;
  if (!as.rounds) return 0;
  if (mode == RoundingMode::kStochastic) return all;
  return (as.needs_random[1] ? of.signed_mask : 0) | (as.needs_random[0] ? all & ~of.signed_mask : 0) |
         (mode == RoundingMode::kAuto ? long_averages : 0);
}

std::vector<std::string> rule_names() {
  // All but those that others become with options.
  static const std::vector<std::string> names = [] {
    const int all = static_cast<int>(rules().size());
    std::vector<bool> is_variant(static_cast<size_t>(all), false);
    for (int rule = 0; rule < all; ++rule)
      for (unsigned bits = 0; bits < 32; ++bits) {
        const bool amsgrad = bits & 4, nesterov = (bits & 2) && !amsgrad;
        const int as = effective_rule(rule, {(bits & 1) != 0, nesterov, amsgrad, (bits & 8) != 0, (bits & 16) != 0});
        if (as != rule) is_variant[static_cast<size_t>(as)] = true;
      }
    std::vector<std::string> named;
    for (size_t rule = 0; rule < is_variant.size(); ++rule)
      if (!is_variant[rule]) named.emplace_back(rules()[rule].name);
    return named;
  }();
  return names;
}

std::vector<std::string> codec_names() {
  std::vector<std::string> names;
  for (const CodecInfo& codec : codecs()) names.emplace_back(codec.name);
  return names;
}

namespace {

// Position in `table` of the entry that users know as `name`; `names` are those they may know.
template <class Info>
int find(const char* what, const std::string& name, const std::vector<Info>& table,
         const std::vector<std::string>& names) {
  std::string known;
  for (const std::string& one : names) {
    if (one == name)
      for (size_t i = 0; i < table.size(); ++i)
        if (name == table[i].name) return static_cast<int>(i);
    known += (known.empty() ? "" : ", ") + one;
  }
  fail(ErrorKind::kInvalidArgument, "got %s '%s', wanted one of: %s", what, name.c_str(), known.c_str());
}

}  // namespace

int find_rule(const std::string& name) { return find("rule", name, rules(), rule_names()); }
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
