#include "backend/sycl/host/pointers.h"

#include "core/error.h"

namespace lowtide::sycl_host {

void PointerCheck::one(const void* data, const char* what, size_t index) const {
  if (!data || sycl::get_pointer_type(data, context_) != sycl::usm::alloc::unknown) return;
  fail(ErrorKind::kInvalidArgument,
       "got %s of item %zu at %p, which is no memory of the queue's SYCL context; wanted USM (sycl::malloc_device, "
       "_host or _shared with that context), as this device cannot address other memory",
       what, index, data);
}

void PointerCheck::gradient(const StepItem& item, size_t index) const {
  if (!any_ && item.param_layout->numel) one(item.grad, "the gradient", index);
}

void PointerCheck::operator()(const StepItem& item, size_t index) const {
  if (any_ || !item.param_layout->numel) return;
  one(item.param, "the parameter", index);
  one(item.grad, "the gradient", index);
  for (const void* codes : item.codes) one(codes, "codes", index);
  for (const void* scales : item.scales) one(scales, "scales", index);
}

void PointerCheck::operator()(const CodecItem& item) const {
  if (any_ || !item.rows || !item.row_length) return;
  one(item.values, "values", 0);
  one(item.codes, "codes", 0);
  one(item.scales, "scales", 0);
}

void PointerCheck::operator()(const SignItem& item) const {
  if (any_ || !item.count) return;
  one(item.values, "values", 0);
  one(item.bits, "bits", 0);
  one(item.zeros, "the marks of zeros", 0);
}

void PointerCheck::operator()(const VoteItem& item) const {
  if (any_ || !item.count) return;
  for (size_t v = 0; v < item.ballots.size(); ++v)
    if (weight_of(item, v)) one(item.ballots[v], "the ballot", v);
  if (item.ties == TieRule::kPrevious) one(item.previous, "the earlier result", 0);
  if (item.ties == TieRule::kZero) one(item.zeros, "the marks of zeros", 0);
  one(item.result, "the result", 0);
}

}  // namespace lowtide::sycl_host
