// A parameter in the optimizer: its description (ParamSpec), its address, and its state.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "memory/arena.h"
#include "optim/param_spec.h"

namespace lowtide {

// The progress of a piece of a parameter. Pieces differ only after a failing disk stopped a step half-way.
struct Progress {
  int64_t behind = 0;  // steps of the parameter that the piece has missed
  bool uninitialized = false;
  bool done = false;  // within a step
};

constexpr uint32_t kAllStates = (uint32_t{1} << kMaxArrays) - 1;

struct Parameter : ParamSpec {
  explicit Parameter(ParamSpec spec) : ParamSpec(std::move(spec)) {}

  // A step of many small parameters is bound by memory latency: the fields that every step reads are together, after
  // the numbers of the specification.
  int group = 0;
  DType dtype = DType::kF32;
  int64_t steps = 0;
  Carried carried;                 // after these steps
  uint32_t partially_written = 0;  // bit k: replacing state k failed half-way, so part of it is old
  bool evaluating = false;         // the parameter has its evaluation weights: see Optimizer::set_evaluating
  bool has_state = false;
  bool uninitialized = false;  // the state is empty: no step, and nothing was restored into it
  bool paged = false;          // the state is in its budget's store; codes and scales are null
  bool wants_state = false;    // before its first gradient, together with the others of its budget
  Layout layout;               // its own strided layout
  int state_rule = 0;          // the rule whose states are allocated; SGD keeps its buffer while momentum is 0
  void* data = nullptr;
  Layout grad_layout;                 // layout of the last strided gradient
  std::vector<int64_t> grad_strides;  // the strides from which grad_layout was made; empty: none
  std::vector<Progress> progress;     // for each piece, if paged
  double evaluating_beta1 = 0;        // the beta1 with which the weights moved to the evaluation weights
  void* codes[kMaxArrays] = {};
  float* scales[kMaxArrays] = {};

  // The layout of a gradient of this, the number-th parameter; valid until one with other strides. Throws
  // kInvalidArgument for an invalid element type or strides.
  const Layout& gradient_layout(const Gradient& grad, size_t number);

  // Counts one more step of all its state, if it has any.
  void count_step() {
    ++steps;
    if (uninitialized && arrays(rule) > 0) uninitialized = false;
  }
  // Notes a move to the evaluation weights with this beta1, or back.
  void note_moved(bool to_evaluate, double by_beta1) {
    evaluating = to_evaluate;
    evaluating_beta1 = to_evaluate ? by_beta1 : 0;
  }
  int64_t state_bytes() const { return has_state ? bytes(state_rule) : 0; }  // allocated now
  void set_uninitialized(bool now) {
    uninitialized = now;
    for (Progress& piece : progress) piece.uninitialized = now;
  }
  // The parameter now has the states of `of_rule`, which are empty.
  void begin_state(int of_rule) {
    has_state = true;
    partially_written = 0;
    state_rule = of_rule;
    uninitialized = true;
  }
  // Allocates them, decoding to zero. Throws kOutOfMemory and changes nothing.
  void allocate_state(Arena& arena, int of_rule);
};

}  // namespace lowtide
