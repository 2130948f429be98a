// Finds accesses to the same bytes that nothing orders. Works on what is queued, with vector clocks, and never looks at
// the order in which things happened to run: the verdict is the same for every schedule.
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
  using Clock = std::vector<int64_t>;  // of each actor: how many of its operations have happened before

  struct Race {
    std::string first, second;  // names of the operations, in the order they were queued
    Span span;                  // the bytes both touch
  };

  int add_actor();  // the host, a stream

  void begin_operation(int actor) { ++clocks_[static_cast<size_t>(actor)][static_cast<size_t>(actor)]; }
  // An access of the actor's current operation. Records a race with each conflicting access that is not ordered before.
  void access(int actor, const std::string& operation, const Span& span, bool write);

  const Clock& clock(int actor) const { return clocks_[static_cast<size_t>(actor)]; }
  void join(int actor, const Clock& seen);  // all in `seen` happens before the actor's next operation

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
  std::vector<std::vector<Access>> last_;  // of each region: accesses that no later one stands for
  std::vector<Race> races_;
};

std::string to_string(const RaceChecker::Race& race);

}  // namespace lowtide::fake
