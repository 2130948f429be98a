// Learns in which order steps of some of the parameters come. Gradient release takes one bucket of them after another,
// the same in every iteration: what a step wants says nothing of what the next one will want, but what came behind that
// bucket the last time does.
#pragma once

#include <algorithm>
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
    note_parts(wanted);
    if (last_) last_->next = &step;
    last_ = &step;
    if (!step.next && !wanted.empty()) return nullptr;
    return &(step.next ? step.next : &step)->wanted;
  }
  // Whether the last step began an iteration: one of its parameters had been stepped in the one before. Otherwise it
  // was another bucket.
  bool begins() const { return begins_; }

 private:
  void note_parts(const std::vector<int64_t>& wanted) {
    if (!wanted.empty())
      stepped_.resize(
          std::max(stepped_.size(), static_cast<size_t>(*std::max_element(wanted.begin(), wanted.end())) + 1));
    const auto iteration_of = [&](int64_t param) -> int64_t& { return stepped_[static_cast<size_t>(param)]; };
    begins_ = iteration_ == 0 || wanted.empty() ||
              std::any_of(wanted.begin(), wanted.end(), [&](int64_t i) { return iteration_of(i) == iteration_; });
    iteration_ += begins_;
    for (const int64_t param : wanted) iteration_of(param) = iteration_;
  }

  struct Step {
    std::vector<int64_t> wanted;
    const Step* next = nullptr;
  };
  std::map<std::pair<int64_t, bool>, Step> steps_;
  Step* last_ = nullptr;
  std::vector<int64_t> stepped_;  // by parameter: the last iteration
  int64_t iteration_ = 0;
  bool begins_ = true;
};

}  // namespace lowtide
