#include "backend/signs.h"

#include <bit>
#include <iterator>

#include "backend/catalog.h"
#include "core/error.h"

namespace lowtide {
namespace {

constexpr const char* kTies[] = {
// indexed by the rule's number
#define LT_TIE(number, name) #name,
#include "portable/ties.def"
#undef LT_TIE
};
constexpr int kTieRules = static_cast<int>(std::size(kTies));

std::string public_name(int tie_rule) {
  std::string name = kTies[tie_rule] + 1;
  name[0] = static_cast<char>(name[0] - 'A' + 'a');
  return name;
}

bool exists(TieRule rule) { return static_cast<int>(rule) >= 0 && static_cast<int>(rule) < kTieRules; }

// Checks the ballots and weights of `count` signs.
void check_voters(int64_t count, std::span<const std::byte* const> ballots, std::span<const uint32_t> weights) {
  LT_REQUIRE(count >= 0, "got %lld signs to vote on, wanted 0 or more", ll(count));
  LT_REQUIRE(weights.empty() || weights.size() == ballots.size(), "got %zu weights for %zu ballots, wanted one each",
             weights.size(), ballots.size());
  uint64_t sum = 0;
  for (size_t v = 0; v < ballots.size(); ++v) {
    LT_REQUIRE(ballots[v] || weight_of(weights, v) == 0 || count == 0,
               "got no ballot from voter %zu, whose weight is %u; wanted weight 0 for an absent voter", v,
               weight_of(weights, v));
    sum += weight_of(weights, v);
  }
  LT_REQUIRE(sum < uint64_t{1} << 31 && ballots.size() < size_t{1} << 31,
             "got %zu voters with %llu votes, wanted fewer than 2^31", ballots.size(),
             static_cast<unsigned long long>(sum));
}

void check_range(int64_t first, int64_t count) {
  LT_REQUIRE(first >= 0 && count >= 0 && first <= kMostSigns && count <= kMostSigns,
             "got %lld signs that begin at number %lld, wanted both from 0 to 2^60", ll(count), ll(first));
}

void check_aligned(int64_t first) {
  LT_REQUIRE(first % kSignAlignment == 0, "got signs that begin at number %lld, wanted a multiple of %lld", ll(first),
             ll(kSignAlignment));
}

}  // namespace

TieRule find_tie_rule(const std::string& name) {
  std::string known;
  for (int i = 0; i < kTieRules; ++i) {
    if (name == public_name(i)) return static_cast<TieRule>(i);
    known += (known.empty() ? "" : ", ") + public_name(i);
  }
  fail(ErrorKind::kInvalidArgument, "got ties='%s', wanted one of %s", name.c_str(), known.c_str());
}

std::string tie_rule_name(TieRule rule) {
  return exists(rule) ? public_name(static_cast<int>(rule)) : std::to_string(static_cast<int>(rule));
}

void check(const SignItem& item) {
  check_range(item.first, item.count);
  LT_REQUIRE(item.count == 0 || (item.values && item.bits), "got no %s for %lld signs", item.values ? "bits" : "values",
             ll(item.count));
  LT_REQUIRE(reinterpret_cast<uintptr_t>(item.values) % static_cast<uintptr_t>(dtype_bytes(item.dtype)) == 0,
             "got %s values at %p, wanted them aligned to an element", dtype_name(item.dtype), item.values);
  if (item.presence || item.scales) check_aligned(item.first);
  LT_REQUIRE(!item.big || item.first % 8 == 0, "got signs in the order 'big' that begin at number %lld, wanted a byte",
             ll(item.first));
}

void check(const VoteItem& item) {
  check_voters(item.count, item.ballots, item.weights);
  LT_REQUIRE(!item.big || item.presence.empty(), "got presence of voters for ballots in the order 'big', wanted none");
  LT_REQUIRE(item.presence.empty() || item.presence.size() == item.ballots.size(),
             "got presence of %zu voters for %zu ballots, wanted one each", item.presence.size(), item.ballots.size());
  for (size_t v = 0; v < item.presence.size(); ++v)
    LT_REQUIRE(item.presence[v] || weight_of(item, v) == 0 || item.count == 0, "got no presence of voter %zu", v);
  LT_REQUIRE(item.count == 0 || item.presence.empty() || item.result_presence, "got no memory for the presence");
  LT_REQUIRE(exists(item.ties), "got tie rule %d, which does not exist", static_cast<int>(item.ties));
  LT_REQUIRE(item.count == 0 || item.result, "got no memory for the result");
  LT_REQUIRE(item.count == 0 || item.previous || item.ties != TieRule::kPrevious,
             "got no earlier result for ties that become the earlier sign");
  LT_REQUIRE(item.count == 0 || item.zeros || item.ties != TieRule::kZero,
             "got no memory for the marks of ties that become zero");
}

void check(const CountItem& item) {
  check_voters(item.count, item.ballots, item.weights);
  const auto needed = static_cast<size_t>(std::bit_width(weight_sum(item.ballots, item.weights)));
  LT_REQUIRE(item.planes.size() >= needed, "got %zu planes for counts that need %zu", item.planes.size(), needed);
  for (const std::byte* plane : item.planes) LT_REQUIRE(plane || item.count == 0, "got no memory for a plane");
}

void check(const ApplyItem& item) {
  LT_REQUIRE(item.layout, "got no layout");
  check_range(item.first, item.layout->numel);
  check_aligned(item.first);
  LT_REQUIRE(item.layout->numel == 0 || (item.param && item.bits), "got no %s", item.param ? "bits" : "parameter");
}

void check_residual_codec(int codec) {
  const CodecInfo& of = codec_info(codec);
  LT_REQUIRE(
      !of.has_pairs(),
      "got state '%s' for a residual of error feedback, wanted one whose codes are whole bytes, such as dynamic8",
      of.name);
}

void check(const FeedbackItem& item) {
  check_range(item.first, item.count);
  check_aligned(item.first);
  LT_REQUIRE(item.count == 0 || (item.bits && item.bit_scales), "got no memory for bits and scales");
  if (item.codes) {
    LT_REQUIRE(item.codec >= 0 && static_cast<size_t>(item.codec) < codecs().size(),
               "got codec %d for the residual, which does not exist", item.codec);
    const CodecInfo& codec = codec_info(item.codec);
    check_residual_codec(item.codec);
    LT_REQUIRE(!codec.scaled || item.scales || item.count == 0, "got no scales for a residual in %s", codec.name);
  }
  if (item.values) {
    LT_REQUIRE(item.ballots.empty(), "got values and ballots, wanted one of them");
    LT_REQUIRE(reinterpret_cast<uintptr_t>(item.values) % static_cast<uintptr_t>(dtype_bytes(item.dtype)) == 0,
               "got %s values at %p, wanted them aligned to an element", dtype_name(item.dtype), item.values);
    return;
  }
  check_voters(item.count, item.ballots, item.weights);
  LT_REQUIRE(item.ballot_scales.size() == item.ballots.size(),
             "got scales of %zu voters for %zu ballots, wanted one each", item.ballot_scales.size(),
             item.ballots.size());
  LT_REQUIRE(item.count == 0 || weight_sum(item.ballots, item.weights) > 0,
             "got no values and no voters, wanted one of them");
}

uint32_t weight_sum(std::span<const std::byte* const> ballots, std::span<const uint32_t> weights) {
  uint32_t sum = 0;
  for (size_t v = 0; v < ballots.size(); ++v) sum += weight_of(weights, v);
  return sum;
}

}  // namespace lowtide
