#include "sign/ties.h"

#include "core/error.h"

namespace lowtide {
namespace {

struct Named {
  TieRule rule;
  const char* text;
};
constexpr Named kRules[] = {
#define LT_TIE(number, name) {TieRule::name, #name},
#include "portable/ties.def"
#undef LT_TIE
};

std::string public_name(const char* text) {
  std::string name = text + 1;
  name[0] = static_cast<char>(name[0] - 'A' + 'a');
  return name;
}

}  // namespace

TieRule find_tie_rule(const std::string& name) {
  std::string known;
  for (const Named& each : kRules) {
    if (name == public_name(each.text)) return each.rule;
    known += (known.empty() ? "" : ", ") + public_name(each.text);
  }
  fail(ErrorKind::kInvalidArgument, "got ties='%s', wanted one of %s", name.c_str(), known.c_str());
}

std::string tie_rule_name(TieRule rule) {
  for (const Named& each : kRules)
    if (rule == each.rule) return public_name(each.text);
  return std::to_string(static_cast<int>(rule));
}

}  // namespace lowtide
