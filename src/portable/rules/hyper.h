// What the host hands to a rule to make its arguments: the hyper-parameters in double, the number t of this step for
// this parameter, from 1, and whether the state holds nothing yet (a state may be newer than its parameter's first
// step). Rules reduce them to a small struct of floats once per step, so that no kernel ever computes beta^t.
struct RuleInput {
  double lr, beta1, beta2, beta3, eps, weight_decay, momentum, dampening;
  bool nesterov;
  double alpha, t_alpha, t_beta3;  // AdEMAMix
  double lr_decay, initial;        // Adagrad
  double momentum_decay;           // NAdam
  double t;
  bool first;
};

// Every rule says, by decay(h, k), what part of state k's average stays in a step: its beta. 1 for a sum; 0 for what is
// no average, such as a running maximum, which nearest rounding keeps as it is. Averages that stay long are rounded
// stochastically unless users say otherwise.
LT_HOST_FN double power(double base, double exponent) { return __builtin_pow(base, exponent); }
