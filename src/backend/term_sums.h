// The sums of a rule's terms over all parameters (portable/norms.h), exact: of any parts in any order, they are the
// same.
#pragma once

#include <type_traits>
#include <vector>

#include "core/exact_sum.h"

namespace lowtide {

struct TermSums {
  ExactSum below, above;  // the first term's magnitudes, where it is negative and where it is not
  ExactSum second;

  void merge(const TermSums& other) {
    below.merge(other.below);
    above.merge(other.above);
    second.merge(other.second);
  }
  // All limbs; those of several sums may be added. Without a meaning if a sum is not finite.
  static constexpr int kLimbs = 3 * ExactSum::kLimbs;
  std::vector<int64_t> limbs() const {
    std::vector<int64_t> all;
    for (const ExactSum* const sum : {&below, &above, &second})
      for (const int64_t limb : sum->limbs()) all.push_back(limb);
    return all;
  }
  static TermSums of_limbs(const std::vector<int64_t>& limbs) {
    TermSums out;
    auto at = limbs.begin();
    for (ExactSum* const sum : {&out.below, &out.above, &out.second}) {
      ExactSum::Limbs own;
      std::copy_n(at, own.size(), own.begin());
      sum->set_limbs(own);
      at += static_cast<int64_t>(own.size());
    }
    return out;
  }

  // NaN for a sum with terms that are not finite.
  void put(double (&sums)[2]) const {
    sums[0] = above.minus(below);
    sums[1] = second.value();
  }
  bool are_finite() const { return std::isfinite(below.value() + above.value() + second.value()); }
};

static_assert(std::is_standard_layout_v<TermSums> && std::is_trivially_copyable_v<TermSums>);  // for border.h

}  // namespace lowtide
