#include "sign/ties.h"

#include <iterator>

#include "core/error.h"

namespace lowtide {
namespace {

constexpr const char* kRules[] = {
// indexed by the rule's number
#define LT_TIE(number, name) #name,
#include "portable/ties.def"
#undef LT_TIE
};

std::string public_name(int number) {
  std::string name = kRules[number] + 1;
  name[0] = static_cast<char>(name[0] - 'A' + 'a');
  return name;
}

}  // namespace

TieRule find_tie_rule(const std::string& name) {
  std::string known;
  for (int i = 0; i < static_cast<int>(std::size(kRules)); ++i) {
    if (name == public_name(i)) return static_cast<TieRule>(i);
    known += (known.empty() ? "" : ", ") + public_name(i);
  }
  fail(ErrorKind::kInvalidArgument, "got ties='%s', wanted one of %s", name.c_str(), known.c_str());
}

std::string tie_rule_name(TieRule rule) {
  const auto number = static_cast<int>(rule);
  return number >= 0 && number < static_cast<int>(std::size(kRules)) ? public_name(number) : std::to_string(number);
}

}  // namespace lowtide
