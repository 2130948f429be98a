// Names of what a backend of devices runs on: "<kind>", with ":<number>" for a device of that number.
#pragma once

#include <charconv>
#include <string>

namespace lowtide::kernels {

struct Target {
  std::string kind;
  int number = -1;      // -1: none is named
  bool is_well = true;  // false: what follows ':' is no number
};

inline Target parse_target(const std::string& text) {
  Target target{text.substr(0, text.find(':'))};
  if (target.kind.size() == text.size()) return target;
  const char *const first = text.data() + target.kind.size() + 1, *const end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(first, end, target.number);
  target.is_well = error == std::errc() && rest == end && target.number >= 0;
  return target;
}

}  // namespace lowtide::kernels
