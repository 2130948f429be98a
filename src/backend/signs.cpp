#include "backend/signs.h"

#include <limits>

#include "core/error.h"

namespace lowtide {

void check(const SignItem& item) {
  constexpr int64_t kMost = std::numeric_limits<int64_t>::max() / 8;
  LT_REQUIRE(item.first >= 0 && item.count >= 0 && item.first <= kMost && item.count <= kMost,
             "got %lld signs from number %lld, wanted both from 0 to 2^60", static_cast<long long>(item.count),
             static_cast<long long>(item.first));
  LT_REQUIRE(item.count == 0 || (item.values && item.bits), "got no %s for %lld signs", item.values ? "bits" : "values",
             static_cast<long long>(item.count));
  LT_REQUIRE(reinterpret_cast<uintptr_t>(item.values) % static_cast<uintptr_t>(dtype_bytes(item.dtype)) == 0,
             "got %s values at %p, wanted them aligned to an element", dtype_name(item.dtype), item.values);
}

void check(const VoteItem& item) {
  LT_REQUIRE(item.count >= 0, "got %lld signs to vote on, wanted 0 or more", static_cast<long long>(item.count));
  LT_REQUIRE(item.weights.empty() || item.weights.size() == item.ballots.size(),
             "got %zu weights for %zu ballots, wanted one each", item.weights.size(), item.ballots.size());
  uint64_t sum = 0;
  for (size_t v = 0; v < item.ballots.size(); ++v) {
    LT_REQUIRE(item.ballots[v] || weight_of(item, v) == 0 || item.count == 0,
               "got no ballot from voter %zu, whose weight is %u; absent ones have weight 0", v, weight_of(item, v));
    sum += weight_of(item, v);
  }
  LT_REQUIRE(sum < uint64_t{1} << 31 && item.ballots.size() < size_t{1} << 31,
             "got %zu voters with %llu votes, wanted fewer than 2^31", item.ballots.size(),
             static_cast<unsigned long long>(sum));
  switch (item.ties) {
#define LT_TIE(number, name) case TieRule::name:
#include "portable/ties.def"
#undef LT_TIE
    break;
    default:
      fail(ErrorKind::kInvalidArgument, "got tie rule %d, which there is not", static_cast<int>(item.ties));
  }
  LT_REQUIRE(item.count == 0 || item.result, "got no memory for the result");
  LT_REQUIRE(item.count == 0 || item.previous || item.ties != TieRule::kPrevious,
             "got no earlier result for ties that become the earlier sign");
  LT_REQUIRE(item.count == 0 || item.zeros || item.ties != TieRule::kZero,
             "got no memory for the marks of ties that become zero");
}

uint32_t weight_sum(const VoteItem& item) {
  uint32_t sum = 0;
  for (size_t v = 0; v < item.ballots.size(); ++v) sum += weight_of(item, v);
  return sum;
}

}  // namespace lowtide
