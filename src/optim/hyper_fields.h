// Hyper-parameters by name: the one list that interfaces with names (C, Python) go through.
#pragma once

#include "lowtide/optimizer.h"

namespace lowtide {

// Calls field(name, member) for every hyper-parameter of `hyper`; members are double or bool.
template <class H, class Fn>
void for_each_hyper(H& hyper, Fn&& field) {
  field("lr", hyper.lr);
  field("beta1", hyper.beta1);
  field("beta2", hyper.beta2);
  field("beta3", hyper.beta3);
  field("eps", hyper.eps);
  field("weight_decay", hyper.weight_decay);
  field("momentum", hyper.momentum);
  field("dampening", hyper.dampening);
  field("nesterov", hyper.nesterov);
  field("maximize", hyper.maximize);
  field("amsgrad", hyper.amsgrad);
  field("centered", hyper.centered);
  field("alpha", hyper.alpha);
  field("t_alpha", hyper.t_alpha);
  field("t_beta3", hyper.t_beta3);
  field("lr_decay", hyper.lr_decay);
  field("initial_accumulator_value", hyper.initial_accumulator_value);
  field("momentum_decay", hyper.momentum_decay);
  field("trust_coefficient", hyper.trust_coefficient);
  field("max_unorm", hyper.max_unorm);
}

}  // namespace lowtide
