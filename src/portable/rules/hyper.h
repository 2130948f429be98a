// The host makes a rule's arguments from this: the hyper-parameters in double, the number of this step, and what else
// the step depends on. Rules reduce it to a small struct of floats once per step, so that no kernel computes beta^t.
struct RuleInput {
  double lr = 0, beta1 = 0, beta2 = 0, beta3 = 0, eps = 0, weight_decay = 0, momentum = 0, dampening = 0;
  bool nesterov = false;
  double alpha = 0, t_alpha = 0, t_beta3 = 0;
  double lr_decay = 0, initial = 0;  // Adagrad
  double momentum_decay = 0;         // NAdam
  double trust_coefficient = 0;      // LARS
  double max_unorm = 0;              // LAMB, LARS; 0: none
  double norm[2] = {};               // of all terms() of the parameter, 0 before they are known
  double t = 1;                      // number of this step for this parameter, from 1
  bool first = false;                // the state holds nothing yet, though the parameter may have been stepped
  double error = 0;                  // by which stored states are rounded, relative to them; 0: not at all
};

// Every rule has decay(h, k): the part of state k's average that a step keeps, its beta. It is 1 for a sum, and 0 for
// a state that is no average, such as a running maximum, which nearest rounding keeps as it is. Averages that stay long
// are rounded stochastically unless users say otherwise.
