// NAdam's product of mu over the steps that a parameter has taken (torch.optim has it in state as "mu_product"). A
// rule's arguments are made of the hyper-parameters of now (portable/rules/adam.h), so the product in them is the one
// that beta1 and momentum_decay would have given had they always been what they are. Schedulers that cycle beta1 change
// them on the way: these functions keep the product that was, and put the arguments right.
#pragma once

#include <cstddef>
#include <cstdint>

#include "lowtide/optimizer.h"
#include "optim/parameter.h"

namespace lowtide {

// A product at or below it stays as it is.
extern const double kNoMuProduct;

// Whether a rule, by its number, has such a product.
bool has_mu_product(int rule);

// Parameter::mu_product one step later, with these hyper-parameters.
double next_mu_product(const Parameter& param, const Hyper& hyper);

// Puts the arguments of step `t` right that were made of `hyper`, for a product of `before` until then.
void correct_arguments(const Hyper& hyper, int64_t t, double before, std::byte* args);

// The product that such hyper-parameters give in so many steps.
double mu_product_of(const Hyper& hyper, int64_t steps);
// The product of a parameter; kAsNow where its rule has none.
double mu_product(const Optimizer& of, int64_t param);
// To be called after set_steps() and load(), which leave that of the hyper-parameters of the next step. Throws
// kInvalidArgument for what is not above 0 and at most 1. Nothing happens for a rule that has none.
void set_mu_product(Optimizer& of, int64_t param, double product);

}  // namespace lowtide
