// Finds accesses to the same bytes that nothing orders. Uses vector clocks on the queued work and never looks at the
// order in which things happened to run, so the verdict is the same for every schedule.
#pragma once

#include "support/test.h"

namespace lowtide::fake {

struct Span {
  int region = -1;
  int64_t begin = 0, bytes = 0;
  int64_t end() const { return begin + bytes; }
  bool overlaps(const Span& other) const {
    return region == other.region && begin < other.end() && other.begin < end();
  }
};

class RaceChecker {
 public:
  using Clock = std::vector<int64_t>;  // for each actor, how many of its operations have happened before

  struct Race {
    std::string first, second;  // names of the operations, in queueing order
    Span span;                  // the bytes that both touch
  };

  int add_actor();  // the host, or a stream

  void begin_operation(int actor) { ++clocks_[static_cast<size_t>(actor)][static_cast<size_t>(actor)]; }
  // Records an access of the actor's current operation, and a race with each conflicting access that is not ordered
  // before.
  void access(int actor, const std::string& operation, const Span& span, bool write);

  const Clock& clock(int actor) const { return clocks_[static_cast<size_t>(actor)]; }
  void join(int actor, const Clock& seen);  // everything in `seen` happens before the actor's next operation

  const std::vector<Race>& races() const { return races_; }

 private:
  struct Access {
    int actor;
    int64_t time;  // the actor's own count
    bool write;
    Span span;
    std::string operation;
  };

  std::vector<Clock> clocks_;
  std::vector<std::vector<Access>> last_;  // for each region, the accesses that no later access replaces
  std::vector<Race> races_;
};

std::string to_string(const RaceChecker::Race& race);

}  // namespace lowtide::fake
