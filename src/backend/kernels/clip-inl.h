// The norm that clips gradients, and the factor, as torch has it: in double, for host code and for devices that have
// it. Included in a namespace after portable.h.

// largest: the magnitude as float bits; root: of the sum of squares.
LT_FN double clip_norm(u32 largest, double root, bool is_largest, double scale) {
  const double by = scale < 0 ? -scale : scale;
  return by * (is_largest || largest >= 0x7f800000u ? static_cast<double>(as_float(largest)) : root);
}

// A norm that is not finite clips nothing: a step's own check says what is wrong.
LT_FN kernels::Clip clip_to(double norm, const kernels::ClipTo& to) {
  constexpr double kEpsilon = 1e-6, kLargest = 0x1.fffffffffffffp1023;
  if (!(norm <= kLargest)) return {norm, to.scale, 0, 0};
  double clip = to.max_norm / (norm + kEpsilon);
  clip = clip < 1.0 ? clip : 1.0;
  return {norm, to.scale * clip, norm * clip < static_cast<double>(kGradientLimit) ? 1u : 0u, 0};
}

// Whether a step that multiplies gradients by `scale`, too, need not look for those that are not finite.
LT_FN bool clip_is_fine(const kernels::Clip& clip, double scale) {
  const double factor = clip.factor * scale, magnitude = clip.norm * (factor < 0 ? -factor : factor);
  return clip.finite && (scale == 1.0 || magnitude < static_cast<double>(kGradientLimit));
}
