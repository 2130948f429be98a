#include "optim/gradient_norm.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "backend/gradient_limit.h"
#include "backend/gradient_reader.h"
#include "core/error.h"
#include "optim/optimizer_impl.h"

namespace lowtide {
namespace {

static_assert(kernels::kSumLimbs == ExactSum::kLimbs && kernels::kSumLowest == ExactSum::kLowest);

cpu::GradientSums sums_on_device(ParamTable& table, std::span<const Gradient> grads, void* stream) {
  GradientReader* const reader = gradient_reader(table.on.at_params);
  if (!reader)
    fail(ErrorKind::kUnsupported, "got gradients in memory of %s, which finds no norms", table.on.at_params.name());
  std::vector<StepItem> items;
  for (size_t i = 0; i < grads.size(); ++i) {
    if (!grads[i].data) continue;
    Parameter& param = table.params[i];
    StepItem& item = items.emplace_back();
    item.grad = grads[i].data;
    item.grad_dtype = grads[i].dtype;
    item.grad_layout = &param.gradient_layout(grads[i], i);
    item.param_layout = &param.layout;
    item.rule = param.rule;
  }
  const kernels::Sums found = reader->read_gradients(items, stream);
  ExactSum::Limbs limbs;
  std::copy_n(found.limbs, limbs.size(), limbs.begin());
  cpu::GradientSums sums;
  sums.squares.set_limbs(limbs);
  sums.largest = found.largest;
  return sums;
}

}  // namespace

cpu::GradientSums gradient_sums(Optimizer& of, std::span<const Gradient> grads, void* stream) {
  auto& impl = OptimizerEnv::impl(of);
  ParamTable& table = impl.table;
  LT_REQUIRE(grads.size() == table.params.size(),
             "got %zu gradients for %zu parameters; give one each, with null data where there is none", grads.size(),
             table.params.size());
  LT_REQUIRE(!stream || table.on.device, "got a stream for CPU parameters, wanted nullptr");
  if (table.on.device) return sums_on_device(table, grads, stream);
  std::vector<cpu::GradientView> views;
  for (size_t i = 0; i < grads.size(); ++i) {
    const Gradient& grad = grads[i];
    if (!grad.data) continue;
    views.push_back({grad.data, &table.params[i].gradient_layout(grad, i), grad.dtype});
  }
  return cpu::gradient_sums(views, table.on.threads, table.on.host->target());
}

double gradient_norm(const cpu::GradientSums& sums, double norm_type, double factor) {
  const bool largest = norm_type == std::numeric_limits<double>::infinity();
  LT_REQUIRE(largest || norm_type == 2, "got norm_type=%g, wanted 2 or infinity", norm_type);
  const float magnitude = std::bit_cast<float>(sums.largest);
  if (largest || !std::isfinite(magnitude)) return std::fabs(factor) * magnitude;
  return std::fabs(factor) * std::sqrt(sums.squares.value());
}

ClippedNorm clip_to(double norm, double max_norm, double factor) {
  LT_REQUIRE(max_norm >= 0, "got max_norm=%g, wanted 0 or more", max_norm);
  constexpr double kEpsilon = 1e-6;
  if (!std::isfinite(norm)) return {norm, factor, false};
  const double clip = std::min(1.0, max_norm / (norm + kEpsilon));
  return {norm, factor * clip, norm * clip < kGradientLimit};
}

ClippedNorm Optimizer::clip_grad_norm(std::span<const Gradient> grads, double max_norm, double norm_type,
                                      const StepOptions& options) {
  const Impl::Call call(*impl_);
  LT_REQUIRE(std::isfinite(static_cast<float>(options.grad_scale)), "got grad_scale=%g, wanted a finite number",
             options.grad_scale);
  const double norm = gradient_norm(gradient_sums(*this, grads, options.stream), norm_type, options.grad_scale);
  return clip_to(norm, max_norm, options.grad_scale);
}

}  // namespace lowtide
