// A parameter in the optimizer: its description (ParamSpec), address and state.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "memory/arena.h"
#include "optim/param_spec.h"

namespace lowtide {

// The progress of a piece of a parameter. Pieces differ only after a failing disk has stopped a step half-way.
struct Progress {
  int64_t behind = 0;  // steps of the parameter that the piece missed
  bool uninitialized = false;
  bool done = false;  // in the current step
};

constexpr uint32_t kAllStates = (uint32_t{1} << kMaxArrays) - 1;

struct Parameter : ParamSpec {
  explicit Parameter(ParamSpec spec) : ParamSpec(std::move(spec)) {}

  // Memory latency limits a step of many small parameters, so the fields that every step reads lie together, after the
  // numbers of the specification.
  int group = 0;
  DType dtype = DType::kF32;
  int64_t steps = 0;
  Carried carried;                 // the numbers after these steps
  uint32_t partially_written = 0;  // bit k: replacing state k failed half-way, leaving part of it old
  bool evaluating = false;         // the weights are those for evaluation: see Optimizer::set_evaluating
  bool has_state = false;
  bool uninitialized = false;  // the state is empty: not stepped and not restored
  bool paged = false;          // the state is in its budget's store; codes and scales are null
  bool wants_state = false;    // place the state before the first gradient, with the rest of its budget
  Layout layout;               // its own strided layout
  int state_rule = 0;          // the rule whose states are allocated; SGD keeps its buffer while momentum is 0
  void* data = nullptr;
  Layout grad_layout;                 // of the last strided gradient
  std::vector<int64_t> grad_strides;  // from which grad_layout was made; empty: none
  std::vector<Progress> progress;     // for each piece, if paged
  double evaluating_beta1 = 0;        // beta1 of the move to the evaluation weights
  void* codes[kMaxArrays] = {};
  float* scales[kMaxArrays] = {};

  // Returns the layout of a gradient of this parameter, whose index is `number`; valid until a gradient with other
  // strides comes. Throws kInvalidArgument for an invalid element type or strides.
  const Layout& gradient_layout(const Gradient& grad, size_t number);

  // Counts one more step of the parameter and all its state.
  void count_step() {
    ++steps;
    if (uninitialized && arrays(rule) > 0) uninitialized = false;
  }
  // Notes a move to the evaluation weights with this beta1, or back.
  void note_moved(bool to_evaluate, double by_beta1) {
    evaluating = to_evaluate;
    evaluating_beta1 = to_evaluate ? by_beta1 : 0;
  }
  int64_t state_bytes() const { return has_state ? bytes(state_rule) : 0; }  // of the state allocated now
  void set_uninitialized(bool now) {
    uninitialized = now;
    for (Progress& piece : progress) piece.uninitialized = now;
  }
  // Gives the parameter the states of `of_rule`, which are empty.
  void begin_state(int of_rule) {
    has_state = true;
    partially_written = 0;
    state_rule = of_rule;
    uninitialized = true;
  }
  // Allocates states that decode to zero. Throws kOutOfMemory and then changes nothing.
  void allocate_state(Arena& arena, int of_rule);
};

}  // namespace lowtide
