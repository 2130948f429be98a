#include "backend/dialect.h"

#include <cstring>

#include "core/error.h"
#include "lowtide/optimizer.h"

namespace lowtide {
namespace host {
namespace {
#include "portable/portable.h"

template <class R>
RuleInfo rule_info(const char* name) {
  static_assert(sizeof(typename R::Args) <= kArgsBytes && R::kStates <= kMaxStates);
  return RuleInfo{name,
                  R::kStates,
                  R::kSigned,
                  {R::kStateNames, R::kStateNames + R::kStates},
                  [](const RuleHyper& h, void* out) {
                    const RuleInput in{h.lr,       h.beta1,     h.beta2,    h.eps, h.weight_decay,
                                       h.momentum, h.dampening, h.nesterov, h.t,   h.first};
                    const typename R::Args args = R::args(in);
                    std::memcpy(out, &args, sizeof args);
                  },
                  sizeof(typename R::Args)};
}

template <class C>
CodecInfo codec_info() {
  CodecInfo info{C::kName, static_cast<int>(sizeof(typename C::Code)), C::kScaled, {0, 0}};
  if constexpr (requires { C::kSignedZero; }) info.zero_code[1] = C::kSignedZero;
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
static_assert(counts_up(kRuleNumbers) && counts_up(kCodecNumbers),
              "rules.def and codecs.def are numbered 0, 1, 2, ...");
enum : int {
#define LT_RULE(number, name, Rule) k_##name = number,
#include "portable/rules.def"
#undef LT_RULE
};
}  // namespace
}  // namespace host

const std::vector<RuleInfo>& rules() {
  static const std::vector<RuleInfo> all = {
#define LT_RULE(number, name, Rule) host::rule_info<host::Rule>(#name),
#include "portable/rules.def"
#undef LT_RULE
  };
  return all;
}

const std::vector<CodecInfo>& codecs() {
  static const std::vector<CodecInfo> all = {
#define LT_CODEC(number, name, Codec) host::codec_info<host::Codec>(),
#include "portable/codecs.def"
#undef LT_CODEC
  };
  return all;
}

int effective_rule(int rule, double momentum) {
  return rule == host::k_sgd && momentum == 0 ? host::k_sgd_plain : rule;
}

std::vector<std::string> rule_names() {
  std::vector<std::string> names;
  for (int i = 0; i < static_cast<int>(rules().size()); ++i)
    if (i != host::k_sgd_plain) names.emplace_back(rules()[static_cast<size_t>(i)].name);
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
int find_codec(const std::string& name) { return find("state", name, codecs(), codec_names()); }

std::vector<std::string> state_names(const std::string& rule) {
  const RuleInfo& info = rules()[static_cast<size_t>(find_rule(rule))];
  return {info.state_names.begin(), info.state_names.end()};
}

}  // namespace lowtide
