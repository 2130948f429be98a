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
  static_assert(sizeof(typename R::Args) <= kArgsBytes && R::kStates <= 3);
  return RuleInfo{name, R::kStates, R::kSigned, {R::kStateNames, R::kStateNames + R::kStates},
                  [](const RuleHyper& h, void* out) {
                    const RuleInput in{h.lr, h.beta1, h.beta2, h.eps, h.weight_decay, h.momentum, h.dampening,
                                       h.nesterov, h.t, h.first};
                    const typename R::Args args = R::args(in);
                    std::memcpy(out, &args, sizeof args);
                  }};
}

template <class C>
CodecInfo codec_info() {
  CodecInfo info{C::kName, static_cast<int>(sizeof(typename C::Code)), C::kScaled, {0, 0}};
  if constexpr (requires { C::kSignedZero; }) info.zero_code[1] = C::kSignedZero;
  return info;
}

static_assert(kBlock == kBlockElements);
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

int find(const char* what, const std::string& name, const std::vector<std::string>& names) {
  std::string known;
  for (size_t i = 0; i < names.size(); ++i) {
    if (names[i] == name) return static_cast<int>(i);
    known += (i ? ", " : "") + names[i];
  }
  fail(ErrorKind::kInvalidArgument, "got %s '%s', wanted one of: %s", what, name.c_str(), known.c_str());
}

}  // namespace

int find_rule(const std::string& name) { return find("rule", name, rule_names()); }
int find_codec(const std::string& name) { return find("state", name, codec_names()); }

std::vector<std::string> state_names(const std::string& rule) {
  const RuleInfo& info = rules()[static_cast<size_t>(find_rule(rule))];
  return {info.state_names.begin(), info.state_names.end()};
}

}  // namespace lowtide
