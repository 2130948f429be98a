// A parameter as the optimizer keeps it: its description (ParamSpec), its address, and its state.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "memory/arena.h"
#include "optim/param_spec.h"

namespace lowtide {

// How far a piece of a parameter has come. Pieces differ only after a step that a failing disk stopped half way.
struct Progress {
  int64_t behind = 0;  // steps of the parameter that the piece has missed
  bool uninitialized = false;
  bool done = false;  // within a step
};

constexpr uint32_t kAllStates = (uint32_t{1} << kMaxArrays) - 1;

struct Parameter : ParamSpec {
  explicit Parameter(ParamSpec spec) : ParamSpec(std::move(spec)) {}

  // A step of many small parameters waits for memory: what every step reads of them lies together, behind the
  // specification's numbers.
  int group = 0;
  DType dtype = DType::kF32;
  int64_t steps = 0;
  Carried carried;                 // after these steps
  uint32_t partially_written = 0;  // bit k: replacing state k failed half way, so part of it is of before
  bool evaluating = false;         // the weights are those to evaluate: see Optimizer::set_evaluating
  bool has_state = false;
  bool uninitialized = false;  // the state holds nothing yet: no step, and nothing was restored into it
  bool paged = false;          // the state is in its budget's store; codes and scales are null
  bool wants_state = false;    // before its first gradient, with the others of its budget
  Layout layout;               // its own, strided
  int state_rule = 0;          // whose states are allocated; SGD keeps its buffer while momentum is 0
  void* data = nullptr;
  Layout grad_layout;                 // the last strided gradient's
  std::vector<int64_t> grad_strides;  // strides that grad_layout was made from; empty: there was none
  std::vector<Progress> progress;     // for each piece, where paged
  double evaluating_beta1 = 0;        // by which the weights moved to those to evaluate
  void* codes[kMaxArrays] = {};
  float* scales[kMaxArrays] = {};

  // The layout of a gradient of this, the number-th parameter; stays until the next one with other strides. Throws
  // kInvalidArgument for an element type or strides that no gradient has.
  const Layout& gradient_layout(const Gradient& grad, size_t number);

  // One more step of all its state, if it has any.
  void count_step() {
    ++steps;
    if (uninitialized && arrays(rule) > 0) uninitialized = false;
  }
  // To the weights to evaluate, by this beta1, or back.
  void note_moved(bool to_evaluate, double by_beta1) {
    evaluating = to_evaluate;
    evaluating_beta1 = to_evaluate ? by_beta1 : 0;
  }
  int64_t state_bytes() const { return has_state ? bytes(state_rule) : 0; }  // allocated now
  void set_uninitialized(bool now) {
    uninitialized = now;
    for (Progress& piece : progress) piece.uninitialized = now;
  }
  // The parameter has the states of `of_rule` now, and they hold nothing yet.
  void begin_state(int of_rule) {
    has_state = true;
    partially_written = 0;
    state_rule = of_rule;
    uninitialized = true;
  }
  // Allocates them, each decoding to zero. Throws kOutOfMemory and changes nothing.
  void allocate_state(Arena& arena, int of_rule);
};

}  // namespace lowtide
