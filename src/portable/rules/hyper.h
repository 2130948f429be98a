// How a rule declares what its arguments are made of. The host hands over an input H: the hyper-parameters by name
// (include/lowtide/hyper.def) in double, norm[2] (of all terms() of the parameter, 0 before they are known), carried[2]
// (below), t (the number of this step for the parameter, from 1), first (the state holds nothing yet) and error (by which stored states
// are rounded, relative to them; 0: not at all). Rules reduce it to a small struct of floats once per step, so that no
// kernel computes beta^t.

// The rule that users name has kHyper: the hyper-parameters that it reads, each with the rule's own default unless the
// general one holds. `maximize` is read for all rules.
struct HyperUse {
  const char* name;
  double value = -1;  // below 0: the general default
};

// Every rule has decay(h, k): the part of state k's average that a step keeps, its beta. It is 1 for a sum, and 0 for
// a state that is no average, such as a running maximum, which nearest rounding keeps as it is. Averages that stay long
// are rounded stochastically unless users say otherwise.

// A rule that runs in place of another, for some of its hyper-parameters, has `Family`, the rule that users name, and
// runs_for(h). No two of a family run for the same.

// A rule that carries numbers from step to step beside its states, because they depend on the hyper-parameters of all
// steps, has kCarriedNames, kCarriedMost (the largest that they can be) and carry(h, after): those after step t. It
// finds those before the step in h.carried or, where h.carried[0] is below 0, takes all steps with the hyper-parameters
// of now; t may be 0 then.
template <class H>
LT_HOST_FN bool is_carried(const H& h) {
  return h.carried[0] >= 0;
}

// A rule whose weights are evaluated elsewhere than where gradients are taken has average_args(h, evaluating): the
// arguments of a step that, given gradients of 0, moves the weights there or back by state 0. Steps of such a rule put
// the learning rate into its states, so they have no direction without one.

// A rule that users name may have refuses(h): nullptr, or why it cannot run with these hyper-parameters. {rule} and
// {name of a hyper-parameter} stand for what was got.
template <class H>
LT_HOST_FN const char* refuses_nesterov(const H& h) {
  return h.nesterov && !(h.momentum > 0 && h.dampening == 0)
             ? "got nesterov with momentum={momentum} and dampening={dampening} for {rule}, wanted momentum > 0 and "
               "dampening = 0"
             : nullptr;
}
