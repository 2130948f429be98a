// How a rule declares the inputs of its arguments. The host passes an input H: the hyper-parameters by name
// (include/lowtide/hyper.def) in double, norm[2] (of the parameter's terms(), 0 until known), carried[2] (below), t
// (the parameter's step number, from 1), first (the state is still empty) and error (the relative error of stored
// states from rounding, or 0). Once per step the rule reduces it to a small struct of floats, so that no kernel
// computes beta^t.

// The rule that users name has kHyper: the hyper-parameters that it reads, each with the rule's own default if that
// differs from the general one. Every rule reads `maximize`.
struct HyperUse {
  const char* name;
  double value = -1;  // below 0: the general default
};

// Every rule has decay(h, k): the share of state k's average that a step keeps, its beta. It is 1 for a sum and 0 for a
// state that is not an average, such as a running maximum, which nearest rounding preserves. Long averages are rounded
// stochastically unless users choose otherwise.

// A rule that replaces another for some hyper-parameters has `Family`, the rule that users name, and runs_for(h). For
// any h, at most one rule of a family runs.

// A rule may carry numbers from step to step beside its states, because they depend on the hyper-parameters of all
// steps. It then has kCarriedNames, kCarriedMost (the largest values) and carry(h, after), which computes the numbers
// after step t. carry() starts from h.carried or, if h.carried[0] is below 0, computes all steps with the current
// hyper-parameters; then t may be 0.
template <class H>
LT_HOST_FN bool is_carried(const H& h) {
  return h.carried[0] >= 0;
}

// A rule whose evaluation weights differ from its training weights has average_args(h, evaluating): the arguments of a
// step that, given gradients of 0, moves the weights there or back by state 0. The states of such a rule include the
// learning rate, so it has no direction independent of the rate.

// A rule that users name may have refuses(h): nullptr, or why it cannot run with these hyper-parameters. {rule} and
// {name of a hyper-parameter} are replaced by their values.
template <class H>
LT_HOST_FN const char* refuses_nesterov(const H& h) {
  return h.nesterov && !(h.momentum > 0 && h.dampening == 0)
             ? "got nesterov with momentum={momentum} and dampening={dampening} for {rule}, wanted momentum > 0 and "
               "dampening = 0"
             : nullptr;
}
