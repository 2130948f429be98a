#include "backend/cuda/host/target.h"

#include <charconv>

#include "core/error.h"

namespace lowtide::cuda_host {

Target parse_target(const std::string& text) {
  const std::string name = text.substr(0, text.find(':'));
  Target target;
  target.fast = name == kFast;
  bool good = name.empty() || name == kExact || target.fast;
  if (name.size() < text.size()) {
    const char *const first = text.data() + name.size() + 1, *const end = text.data() + text.size();
    const auto [rest, error] = std::from_chars(first, end, target.ordinal);
    good = good && error == std::errc() && rest == end && target.ordinal >= 0;
  }
  LT_REQUIRE(good, "got CUDA target '%s', wanted exact or fast, with ':' and a number the device of that ordinal",
             text.c_str());
  return target;
}

}  // namespace lowtide::cuda_host
