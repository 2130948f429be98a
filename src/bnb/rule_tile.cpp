#include "bnb/rule_tile.h"

#include <cstring>

#include "bnb/host_step.h"
#include "core/error.h"

namespace lowtide::bnb {
namespace host {
namespace {
#include "portable/portable.h"

template <class R>
void run_tile(RuleTile& tile, const void* bytes, const float* skip) {
  typename R::Args args;
  std::memcpy(&args, bytes, sizeof args);
  const auto step = [&](int i) {
    float state[R::kStates];
    for (int k = 0; k < R::kStates; ++k) state[k] = tile.s[k][i];
    tile.p[i] = R::template step<float>(tile.p[i], tile.g[i], state, args);
    for (int k = 0; k < R::kStates; ++k) tile.s[k][i] = state[k];
  };
  if (!skip) {  // a loop of its own, that can be vectorized
    for (int i = 0; i < tile.n; ++i) step(i);
    return;
  }
  for (int i = 0; i < tile.n; ++i)
    if (tile.g[i] + tile.p[i] * *skip != 0) step(i);
}

// What multiplies the update, of the rules whose norm can be limited.
float* update_size(AdamArgs& args) { return &args.step_size; }
float* update_size(SgdArgs& args) { return &args.lr; }
float* update_size(RmspropArgs& args) { return &args.lr; }
template <class Args>
float* update_size(Args&) {
  return nullptr;
}

template <class R>
void make_args(const RuleInput& input, double update_scale, void* out) {
  typename R::Args args = R::args(input);
  static_assert(sizeof args <= kArgsBytes);
  if (float* size = update_size(args)) *size = static_cast<float>(*size * update_scale);
  std::memcpy(out, &args, sizeof args);
}

struct RuleFunctions {
  RunTile run;
  void (*make_args)(const RuleInput& input, double update_scale, void* out);
};
template <class R>
constexpr RuleFunctions kFunctions{run_tile<R>, make_args<R>};

const RuleFunctions& functions(Family family) {
  switch (family) {
    case Family::adam:
      return kFunctions<AdamW>;
    case Family::momentum:
      return kFunctions<Sgd>;
    case Family::rmsprop:
      return kFunctions<Rmsprop>;
    case Family::lion:
      return kFunctions<Lion>;
    case Family::adagrad:
      return kFunctions<Adagrad>;
    case Family::ademamix:
      return kFunctions<Ademamix>;
  }
  fail(ErrorKind::kInternal, "no rule for family %d", static_cast<int>(family));
}

void load(DType dtype, const void* from, int n, float* to) {
  const auto* half = static_cast<const u16*>(from);
  if (dtype == DType::kF32)
    std::memcpy(to, from, static_cast<size_t>(n) * sizeof(float));
  else if (dtype == DType::kBF16)
    for (int i = 0; i < n; ++i) to[i] = bf16_decode(u32{half[i]});
  else
    for (int i = 0; i < n; ++i) to[i] = f16_decode(u32{half[i]});
}

void store(DType dtype, const float* from, int n, void* to) {
  auto* half = static_cast<u16*>(to);
  if (dtype == DType::kF32)
    std::memcpy(to, from, static_cast<size_t>(n) * sizeof(float));
  else if (dtype == DType::kBF16)
    for (int i = 0; i < n; ++i) half[i] = static_cast<u16>(bf16_encode(from[i]));
  else
    for (int i = 0; i < n; ++i) half[i] = static_cast<u16>(f16_encode(from[i]));
}

}  // namespace
}  // namespace host

RunTile run_tile_of(Family family) { return host::functions(family).run; }

ArgsBytes args_of(const Update& u, double update_scale) {
  host::RuleInput input{};
  input.lr = u.lr, input.beta1 = u.beta1, input.beta2 = u.beta2, input.beta3 = u.beta3, input.eps = u.eps;
  input.weight_decay = u.weight_decay;
  // momentum's and rmsprop's coefficient comes as beta1; ademamix' alpha and beta3 are scheduled already.
  input.momentum = u.beta1;
  input.alpha = u.family == Family::rmsprop ? u.beta1 : u.alpha;
  input.t = u.step, input.first = u.step == 1;
  ArgsBytes args;
  host::functions(u.family).make_args(input, update_scale, args.data);
  return args;
}

void load_elements(DType dtype, const void* from, int n, float* to) { host::load(dtype, from, n, to); }
void store_elements(DType dtype, const float* from, int n, void* to) { host::store(dtype, from, n, to); }

}  // namespace lowtide::bnb
