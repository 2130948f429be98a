// Learns in which order steps of some of the parameters come. Gradient release takes one bucket of them after another,
// the same in every iteration: what a step wants says nothing of what the next one will want, but what came behind that
// bucket the last time does.
#pragma once

#include <cstdint>
#include <map>
#include <utility>
#include <vector>

namespace lowtide {

class StepOrder {
 public:
  // A step of these parameters (empty: all) has come; changes: whether it changes their state. Returns the parameters
  // of the step that followed it the last time, valid until the next call; nullptr: none has yet, but one of all
  // parameters is taken to be followed by another.
  //
  // A step is known by its first parameter. Chunks would not do: buckets of small parameters share them.
  const std::vector<int64_t>* next_after(const std::vector<int64_t>& wanted, bool changes) {
    Step& step = steps_[{wanted.empty() ? -1 : wanted.front(), changes}];
    step.wanted = wanted;
    if (last_) last_->next = &step;
    last_ = &step;
    if (!step.next && !wanted.empty()) return nullptr;
    return &(step.next ? step.next : &step)->wanted;
  }

 private:
  struct Step {
    std::vector<int64_t> wanted;
    const Step* next = nullptr;
  };
  std::map<std::pair<int64_t, bool>, Step> steps_;
  Step* last_ = nullptr;
};

}  // namespace lowtide
