// A case's arrays in memory that host and device share.
#pragma once

#include "symbols.h"

namespace lowtide::testing {

// The arrays of a case in memory of cget_managed_ptr.
class SharedCopy : public MovedCase {
 public:
  explicit SharedCopy(BnbCase& c) : MovedCase(c, cget_managed_ptr) {
    for (const Part& part : parts()) std::memcpy(part.there, part.here, part.bytes);
  }
  SharedCopy(const SharedCopy&) = delete;
  ~SharedCopy() {
    for (const Part& part : parts()) cfree_managed_ptr(part.there);
  }

  // Like BnbCase::bytes().
  std::vector<std::byte> bytes() const {
    std::vector<std::byte> out;
    for (const Part& part : std::span(parts()).first(parts().size() - of().maps.size())) {
      const auto* from = static_cast<const std::byte*>(part.there);
      out.insert(out.end(), from, from + part.bytes);
    }
    return out;
  }
};

}  // namespace lowtide::testing
