// The arguments of an Update's rule.
#include <cstring>

#include "backend/catalog.h"
#include "bnb/step.h"

namespace lowtide::bnb {
namespace {
#include "portable/portable.h"

// Scales the member of a rule's arguments that multiplies its update.
template <class Args>
void scale_update(float Args::*size, double scale, void* bytes) {
  Args args;
  std::memcpy(&args, bytes, sizeof args);
  args.*size = static_cast<float>(args.*size * scale);
  std::memcpy(bytes, &args, sizeof args);
}

}  // namespace

ArgsBytes args_of(const Update& u, double update_scale) {
  lowtide::RuleInput input{.lr = u.lr, .beta1 = u.beta1, .beta2 = u.beta2, .beta3 = u.beta3, .eps = u.eps};
  input.weight_decay = u.weight_decay;
  // momentum's and rmsprop's coefficient comes as beta1; ademamix' alpha and beta3 are scheduled already.
  input.momentum = u.beta1;
  input.alpha = u.family == Family::rmsprop ? u.beta1 : u.alpha;
  input.t = u.step, input.first = u.step == 1;
  ArgsBytes args;
  rule_info(u.rule()).make_args(input, args.data);
  if (update_scale == 1) return args;
  if (u.family == Family::adam) scale_update(&AdamArgs::step_size, update_scale, args.data);
  if (u.family == Family::momentum) scale_update(&SgdArgs::lr, update_scale, args.data);
  if (u.family == Family::rmsprop) scale_update(&RmspropArgs::lr, update_scale, args.data);
  return args;
}

float value_of(DType dtype, const void* data, int64_t i) {
  if (dtype == DType::kF32) return static_cast<const float*>(data)[i];
  const u32 half = static_cast<const u16*>(data)[i];
  return dtype == DType::kBF16 ? bf16_decode(half) : f16_decode(half);
}

}  // namespace lowtide::bnb
