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

#include "portable/types.h"
#include "portable/math.h"
#include "backend/kernels/clip-inl.h"

// A clip that is known from the start.
class KnownClip final : public QueuedClip {
 public:
  explicit KnownClip(const kernels::Clip& clip) : clip_(clip) {}
  kernels::Clip wait() override { return clip_; }

 private:
  kernels::Clip clip_;
};

GradientReader& reader_of(ParamTable& table) {
  if (GradientReader* const reader = table.on.at_params.gradient_reader()) return *reader;
  fail(ErrorKind::kUnsupported, "got gradients in memory of the %s backend, which cannot find norms",
       table.on.at_params.name());
}

void check_all(const ParamTable& table, std::span<const Gradient> grads, const void* stream) {
  LT_REQUIRE(grads.size() == table.params.size(),
             "got %zu gradients for %zu parameters, wanted one each, with null data for no gradient", grads.size(),
             table.params.size());
  LT_REQUIRE(!stream || table.on.device, "got a stream for CPU parameters, wanted nullptr");
}

// Items for reading gradients only.
std::vector<StepItem> items_of(ParamTable& table, std::span<const Gradient> grads) {
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
  return items;
}

ClippedNorm reported(const kernels::Clip& clip) { return {clip.norm, clip.factor, clip_is_fine(clip, 1)}; }

cpu::GradientSums sums_on_device(ParamTable& table, std::span<const Gradient> grads, void* stream) {
  const kernels::Sums found = reader_of(table).read_gradients(items_of(table, grads), stream);
  ExactSum::Limbs limbs;
  std::copy_n(found.limbs, limbs.size(), limbs.begin());
  cpu::GradientSums sums;
  sums.squares.set_limbs(limbs);
  sums.largest = found.largest;
  return sums;
}

}  // namespace

cpu::GradientSums gradient_sums(Optimizer& of, std::span<const Gradient> grads, void* stream) {
  ParamTable& table = OptimizerEnv::impl(of).table;
  check_all(table, grads, stream);
  if (table.on.device) return sums_on_device(table, grads, stream);
  std::vector<cpu::GradientView> views;
  for (size_t i = 0; i < grads.size(); ++i) {
    const Gradient& grad = grads[i];
    if (!grad.data) continue;
    views.push_back({grad.data, &table.params[i].gradient_layout(grad, i), grad.dtype});
  }
  return cpu::gradient_sums(views, table.on.threads, table.on.host->target());
}

void check_grad_scale(double scale) {
  LT_REQUIRE(std::isfinite(static_cast<float>(scale)), "got grad_scale=%g, wanted a finite number", scale);
}

kernels::ClipTo clip_request(double max_norm, double norm_type, double factor) {
  const bool is_largest = norm_type == std::numeric_limits<double>::infinity();
  LT_REQUIRE(is_largest || norm_type == 2, "got norm_type=%g, wanted 2 or infinity", norm_type);
  LT_REQUIRE(max_norm >= 0, "got max_norm=%g, wanted 0 or more", max_norm);
  check_grad_scale(factor);
  return {max_norm, factor, is_largest, 0, nullptr};
}

kernels::Clip clip_of(const cpu::GradientSums& sums, const kernels::ClipTo& to) {
  return clip_to(clip_norm(sums.largest, std::sqrt(sums.squares.value()), to.is_largest, to.scale), to);
}

ClippedNorm Optimizer::clip_grad_norm(std::span<const Gradient> grads, double max_norm, double norm_type,
                                      const StepOptions& options) {
  const Impl::Call call(*impl_);
  require_no_scaling(options);
  const kernels::ClipTo to = clip_request(max_norm, norm_type, options.grad_scale);
  return reported(clip_of(gradient_sums(*this, grads, options.stream), to));
}

std::shared_ptr<QueuedClip> Optimizer::queue_clip_grad_norm(std::span<const Gradient> grads, double max_norm,
                                                            double norm_type, float* norm, const StepOptions& options) {
  const Impl::Call call(*impl_);
  kernels::ClipTo to = clip_request(max_norm, norm_type, options.grad_scale);
  ParamTable& table = impl_->table;
  Device* const device = table.on.device;
  if (!device || !device->is_capturing(options.stream)) require_no_scaling(options);
  to.loss_scale = options.scaling.scale;
  if (device) {
    check_all(table, grads, options.stream);
    if (auto queued = reader_of(table).queue_clip(items_of(table, grads), to, norm, options.stream)) return queued;
  }
  const kernels::Clip found = clip_of(gradient_sums(*this, grads, options.stream), to);
  if (norm) {
    const auto rounded = static_cast<float>(found.norm);
    if (device) {
      device->copy(options.stream, norm, &rounded, sizeof rounded);
      device->host_wait(device->record(options.stream));
    } else {
      *norm = rounded;
    }
  }
  return std::make_shared<KnownClip>(found);
}

void require_no_scaling(const StepOptions& options) {
  LT_REQUIRE(!options.scaling.scale && !options.scaling.found_inf,
             "got loss scaling on the device for a step that is not recorded in a graph, wanted grad_scale");
}

StepOptions without_clip(const StepOptions& options) {
  require_no_scaling(options);
  StepOptions own = options;
  if (!options.clip) return own;
  own.clip = nullptr;
  check_grad_scale(options.grad_scale);
  const kernels::Clip found = options.clip->wait();
  own.grad_scale = found.factor * options.grad_scale;
  own.assume_finite = options.assume_finite || clip_is_fine(found, options.grad_scale);
  return own;
}

ClippedNorm Optimizer::clipped(QueuedClip& clip) { return reported(clip.wait()); }

}  // namespace lowtide
