#include "backend/kernels/pointer_check.h"

namespace lowtide::kernels {

void PointerCheck::gradient(const StepItem& item, size_t index) const {
  if (!any_ && item.param_layout->numel) one(item.grad, "the gradient", index);
}

void PointerCheck::operator()(const StepItem& item, size_t index) const {
  if (any_ || !item.param_layout->numel) return;
  if (item.ballot) {
    one(item.ballot->bits, "the ballot", index);
    one(item.ballot->presence, "the ballot's presence", index);
  } else {
    one(item.param, "the parameter", index);
  }
  one(item.grad, "the gradient", index);
  for (const void* codes : item.codes) one(codes, "codes", index);
  for (const void* scales : item.scales) one(scales, "scales", index);
  if (has_master(item)) one(item.master.residual, "the residual", index);
}

void PointerCheck::operator()(const CodecItem& item) const {
  if (any_ || !item.rows || !item.row_length) return;
  one(item.values, "values", 0);
  one(item.codes, "codes", 0);
  one(item.scales, "scales", 0);
}

template <class T>
void PointerCheck::voters(std::span<const T* const> rows, std::span<const uint32_t> weights, const char* what) const {
  for (size_t v = 0; v < rows.size(); ++v)
    if (weight_of(weights, v)) one(rows[v], what, v);
}

void PointerCheck::operator()(const SignItem& item, size_t index) const {
  if (any_ || !item.count) return;
  one(item.values, "values", index);
  one(item.bits, "bits", index);
  one(item.zeros, "the marks of zeros", index);
  one(item.presence, "the presence", index);
  one(item.scales, "the scales", index);
  one(item.nonfinite, "the mark of non-finite values", index);
}

void PointerCheck::operator()(const VoteItem& item, size_t index) const {
  if (any_ || !item.count) return;
  voters(item.ballots, item.weights, "the ballot");
  voters(item.presence, item.weights, "the presence");
  if (item.ties == TieRule::kPrevious) one(item.previous, "the earlier result", index);
  if (item.ties == TieRule::kZero) one(item.zeros, "the marks of zeros", index);
  one(item.result, "the result", index);
  if (!item.presence.empty()) one(item.result_presence, "the result's presence", index);
}

void PointerCheck::operator()(const CountItem& item, size_t) const {
  if (any_ || !item.count) return;
  voters(item.ballots, item.weights, "the ballot");
  for (size_t j = 0; j < item.planes.size(); ++j) one(item.planes[j], "the plane", j);
}

void PointerCheck::operator()(const ApplyItem& item, size_t index) const {
  if (any_ || !item.layout->numel) return;
  one(item.param, "the parameter", index);
  one(item.bits, "bits", index);
  one(item.zeros, "the marks of zeros", index);
  one(item.presence, "the presence", index);
}

void PointerCheck::operator()(const FeedbackItem& item, size_t index) const {
  if (any_ || !item.count) return;
  one(item.values, "values", index);
  voters(item.ballots, item.weights, "the ballot");
  voters(item.ballot_scales, item.weights, "the ballot's scales");
  one(item.codes, "codes", index);
  one(item.scales, "scales", index);
  one(item.bits, "bits", index);
  one(item.bit_scales, "the scales of bits", index);
}

}  // namespace lowtide::kernels
