#include "support/fake/race_checker.h"

#include "core/error.h"
#include "support/test.h"

namespace lowtide::fake {

int RaceChecker::add_actor() {
  for (Clock& clock : clocks_) clock.push_back(0);
  clocks_.emplace_back(clocks_.size() + 1, 0);
  return static_cast<int>(clocks_.size()) - 1;
}

void RaceChecker::access(int actor, const std::string& operation, const Span& span, bool write) {
  if (span.bytes == 0) return;
  const Clock& now = clock(actor);
  if (last_.size() <= static_cast<size_t>(span.region)) last_.resize(static_cast<size_t>(span.region) + 1);
  std::vector<Access>& accesses = last_[static_cast<size_t>(span.region)];
  const auto ordered = [&](const Access& a) { return now[static_cast<size_t>(a.actor)] >= a.time; };
  for (const Access& a : accesses) {
    if (!a.span.overlaps(span) || !(write || a.write) || ordered(a)) continue;
    const int64_t begin = std::max(a.span.begin, span.begin), end = std::min(a.span.end(), span.end());
    races_.push_back({a.operation, operation, {span.region, begin, end - begin}});
  }
  // Later verdicts do not change: any access that conflicts with a dropped access, and is not ordered after it, also
  // conflicts with the new access and is not ordered after it either.
  std::erase_if(accesses, [&](const Access& a) {
    const bool covered = span.begin <= a.span.begin && a.span.end() <= span.end();
    return covered && ordered(a) && (write || !a.write);
  });
  accesses.push_back({actor, now[static_cast<size_t>(actor)], write, span, operation});
}

void RaceChecker::join(int actor, const Clock& seen) {
  Clock& mine = clocks_[static_cast<size_t>(actor)];
  for (size_t i = 0; i < seen.size(); ++i) mine[i] = std::max(mine[i], seen[i]);
}

std::string to_string(const RaceChecker::Race& race) {
  return format("'%s' and '%s' both touch bytes [%lld, %lld) of region %d and nothing orders them", race.first.c_str(),
                race.second.c_str(), static_cast<long long>(race.span.begin), static_cast<long long>(race.span.end()),
                race.span.region);
}

}  // namespace lowtide::fake
