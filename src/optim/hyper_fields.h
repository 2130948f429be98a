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
  field("eps", hyper.eps);
  field("weight_decay", hyper.weight_decay);
  field("momentum", hyper.momentum);
  field("dampening", hyper.dampening);
  field("nesterov", hyper.nesterov);
  field("maximize", hyper.maximize);
}

}  // namespace lowtide
