#include "optim/gradient_norm.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "backend/gradient_limit.h"
#include "core/error.h"
#include "optim/optimizer_impl.h"

namespace lowtide {

cpu::GradientSums gradient_sums(Optimizer& of, std::span<const Gradient> grads) {
  auto& impl = OptimizerEnv::impl(of);
  ParamTable& table = impl.table;
  LT_REQUIRE(grads.size() == table.params.size(),
             "got %zu gradients for %zu parameters; give one each, with null data where there is none", grads.size(),
             table.params.size());
  if (table.on.device) fail(ErrorKind::kUnsupported, "got gradients on a device, wanted some in host memory");
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
  const double norm = gradient_norm(gradient_sums(*this, grads), norm_type, options.grad_scale);
  return clip_to(norm, max_norm, options.grad_scale);
}

}  // namespace lowtide
