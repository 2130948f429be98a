// Computes the norm that clips gradients, and the factor, like torch: in double, for host code and for devices with
// doubles. Include in a namespace after portable.h.

// largest: the largest magnitude as float bits; root: the root of the sum of squares.
LT_FN double clip_norm(u32 largest, double root, bool is_largest, double scale) {
  const double by = scale < 0 ? -scale : scale;
  return by * (is_largest || largest >= 0x7f800000u ? static_cast<double>(as_float(largest)) : root);
}

// A non-finite norm clips nothing: the step's own check reports the gradient.
LT_FN kernels::Clip clip_to(double norm, const kernels::ClipTo& to) {
  constexpr double kEpsilon = 1e-6, kLargest = 0x1.fffffffffffffp1023;
  if (!(norm <= kLargest)) return {norm, to.scale, norm};
  double clip = to.max_norm / (norm + kEpsilon);
  clip = clip < 1.0 ? clip : 1.0;
  return {norm, to.scale * clip, norm * clip};
}

// Returns true if a step that multiplies gradients by the factor and by `scale` need not check them for non-finite
// values. A factor that is infinite in float32 would turn zeros into NaNs.
LT_FN bool clip_is_fine(const kernels::Clip& clip, double scale) {
  constexpr double kLargestFloat = 0x1.fffffep127;
  const double by = scale < 0 ? -scale : scale, factor = clip.factor < 0 ? -clip.factor : clip.factor;
  return clip.clipped * by < static_cast<double>(kGradientLimit) && factor * by <= kLargestFloat;
}
