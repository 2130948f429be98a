#include "bnb/update.h"

#include <cmath>
#include <cstring>

#include "backend/catalog.h"
#include "bnb/map8.h"
#include "core/error.h"

namespace lowtide::bnb {
namespace {
#include "portable/portable.h"

const RuleInfo& info_of(const Update& u) { return rule_info(u.rule()); }

void require_array(const void* data, const char* name, size_t alignment) {
  LT_REQUIRE(data, "got NULL for %s, wanted memory", name);
  LT_REQUIRE(reinterpret_cast<uintptr_t>(data) % alignment == 0,
             "got %p for %s, wanted an address aligned to %zu bytes", data, name, alignment);
}

void require_at_least_zero(float value, const char* name) {
  LT_REQUIRE(std::isfinite(value) && value >= 0, "got %s=%g, wanted a finite number of 0 or more", name,
             static_cast<double>(value));
}

void require_finite(float value, const char* name) {
  LT_REQUIRE(std::isfinite(value), "got %s=%g, wanted a finite number", name, static_cast<double>(value));
}

void require_share(float value, const char* name) {
  LT_REQUIRE(value >= 0 && value < 1, "got %s=%g, wanted 0 <= %s < 1", name, static_cast<double>(value), name);
}

void require_map(const float* map, const char* name) {
  for (int i = 0; i < Map8::kSize; ++i) {
    LT_REQUIRE(std::isfinite(map[i]), "got %s[%d]=%g, wanted finite values", name, i, static_cast<double>(map[i]));
    LT_REQUIRE(i == 0 || map[i - 1] <= map[i], "got %s[%d]=%g after %g, wanted ascending values", name, i,
               static_cast<double>(map[i]), static_cast<double>(map[i - 1]));
  }
}

void require_absmax(const float* absmax, int64_t count, const char* name) {
  for (int64_t b = 0; b < count; ++b)
    LT_REQUIRE(std::isfinite(absmax[b]) && absmax[b] >= 0, "got %s[%lld]=%g, wanted finite values of 0 or more", name,
               ll(b), static_cast<double>(absmax[b]));
}

// Scales the field of a rule's arguments that multiplies the rule's update.
template <class Args>
void scale_update(float Args::*size, double scale, void* bytes) {
  Args args;
  std::memcpy(&args, bytes, sizeof args);
  args.*size = static_cast<float>(args.*size * scale);
  std::memcpy(bytes, &args, sizeof args);
}

}  // namespace

int Update::rule() const {
  // Indexed by family. The weight decay of adam is decoupled, like AdamW's, whatever the Python class is called.
  static const int numbers[] = {find_rule("adamw"), find_rule("sgd"),     find_rule("rmsprop"),
                                find_rule("lion"),  find_rule("adagrad"), find_rule("ademamix")};
  return numbers[static_cast<size_t>(family)];
}
int Update::states() const { return info_of(*this).states; }
bool Update::is_second_moment(int k) const { return ((info_of(*this).signed_mask >> k) & 1) == 0; }

void* Update::state(int k) const {
  const int64_t second_half = n * (coded ? 1 : static_cast<int64_t>(sizeof(float)));
  return k == 1 ? state2 : static_cast<std::byte*>(state1) + (k == 2 ? second_half : 0);
}
float* Update::absmax(int k) const { return k == 1 ? absmax2 : absmax1 + (k == 2 ? blocks() : 0); }
const float* Update::quantiles(int k) const { return k == 1 ? quantiles2 : quantiles1; }

bool Update::is_limited() const {
  return max_unorm > 0 && (family == Family::adam || family == Family::momentum || family == Family::rmsprop);
}

float Update::l2() const {
  const bool added = family == Family::momentum || family == Family::rmsprop || family == Family::adagrad;
  return added ? weight_decay : 0.f;
}

void check_arguments(const Update& u) {
  LT_REQUIRE(u.n >= 0, "got n=%lld, wanted 0 or more", ll(u.n));
  LT_REQUIRE(u.step >= 1, "got step=%d, wanted 1 or more", u.step);
  require_finite(u.lr, "lr");
  require_finite(u.gnorm_scale, "gnorm_scale");
  require_at_least_zero(u.weight_decay, "weight_decay");
  require_at_least_zero(u.eps, "eps");
  if (u.family == Family::momentum)
    require_at_least_zero(u.beta1, "beta1");
  else if (u.family != Family::adagrad)
    require_share(u.beta1, "beta1");
  if (u.states() > 1 || u.family == Family::lion) require_share(u.beta2, "beta2");
  if (u.family == Family::ademamix) {
    require_share(u.beta3, "beta3");
    require_at_least_zero(u.alpha, "alpha");
    LT_REQUIRE(std::isfinite(u.lr * u.alpha), "got lr=%g with alpha=%g, wanted lr * alpha that float32 can hold",
               static_cast<double>(u.lr), static_cast<double>(u.alpha));
  }
  const float largest = u.states() > 1 ? u.lr / (1 - u.beta1) : u.lr;
  LT_REQUIRE(std::isfinite(largest) && std::isfinite(u.lr * u.weight_decay),
             "got lr=%g with weight_decay=%g, wanted lr / (1 - beta1) and lr * weight_decay that float32 can hold",
             static_cast<double>(u.lr), static_cast<double>(u.weight_decay));
  LT_REQUIRE(!std::isnan(u.max_unorm), "got max_unorm=nan, wanted a number");
  if (u.n == 0) return;
  const auto element = static_cast<size_t>(dtype_bytes(u.dtype));
  const size_t state = u.coded ? 1 : alignof(float);
  require_array(u.p, "p", element);
  require_array(u.g, "g", element);
  require_array(u.state1, "state1", state);
  if (u.coded) require_array(u.quantiles1, "quantiles1", alignof(float));
  if (u.coded) require_array(u.absmax1, "absmax1", alignof(float));
  if (u.states() > 1) {
    require_array(u.state2, "state2", state);
    if (u.coded) require_array(u.quantiles2, "quantiles2", alignof(float));
    if (u.coded) require_array(u.absmax2, "absmax2", alignof(float));
  }
  if (u.is_limited()) {
    require_at_least_zero(u.param_norm, "param_norm");
    require_array(u.unorm, "unorm", alignof(float));
  }
}

void check_scales(const Update& u) {
  if (!u.coded) return;
  require_map(u.quantiles1, "quantiles1");
  require_absmax(u.absmax1, u.blocks() * (u.states() > 2 ? 2 : 1), "absmax1");
  if (u.states() == 1) return;
  require_map(u.quantiles2, "quantiles2");
  require_absmax(u.absmax2, u.blocks(), "absmax2");
}

bool fits_backend(const Update& u) {
  if (u.skip_zeros) return false;
  for (int k = 0; u.coded && k < u.states(); ++k)
    if (!Map8::is_dynamic(u.quantiles(k), !u.is_second_moment(k))) return false;
  return true;
}

StepItem item_of(const Update& u, const Layout& layout, const void* args) {
  StepItem item;
  item.param = u.p, item.grad = u.g;
  item.param_layout = item.grad_layout = &layout;
  item.param_dtype = item.grad_dtype = u.dtype;
  item.rule = u.rule(), item.codec = find_codec(u.coded ? "dynamic8" : "fp32");
  item.grad_scale = u.gnorm_scale;
  item.args = args;
  for (int k = 0; k < u.states(); ++k) {
    item.codes[k] = u.state(k);
    if (u.coded) item.scales[k] = u.absmax(k);
  }
  return item;
}

Layout flat_layout(int64_t n) { return Layout::make({&n, 1}, {}); }

ArgsBytes args_of(const Update& u, double update_scale) {
  lowtide::RuleInput input{.lr = u.lr, .beta1 = u.beta1, .beta2 = u.beta2, .beta3 = u.beta3, .eps = u.eps};
  input.weight_decay = u.weight_decay;
  // momentum and rmsprop get their coefficient as beta1. The alpha and beta3 of ademamix are already scheduled.
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
