// Error feedback: what one bit per value leaves out is added to the next values (Seide et al. 2014; EF-signSGD,
// Karimireddy et al., arXiv 1901.09847, algorithm 1; one scale per block as in Zheng et al., arXiv 1905.10936).
//   c = x + residual     scale = bf16(mean |c|)     sent: scale * (c >= 0 ? 1 : -1)     residual = c - sent
// One scale per kFeedbackBlock values.
inline constexpr int kFeedbackBlock = 1024;

// sum_lanes adds |c| over this many lanes.
inline constexpr int kSumLanes = 16;

// bfloat16 bits of the scale. A scale that rounds to zero sends nothing; everything stays in the residual.
LT_FN u16 feedback_scale(float sum, int count) {
  return static_cast<u16>(bf16_encode(sum / static_cast<float>(count)));
}

template <class F, class M>
LT_FN F feedback_residual(F c, M plus, F scale) {
  return c - select(plus, scale, F(0.f) - scale);
}

// Computes the mean of the voters' values term by term, in their order: x = (sum of weight * (+-scale)) * inverse, with
// inverse = 1 / sum of weights. Voters of weight 0 add no term.
template <class F, class M>
LT_FN F feedback_term(F sum, M plus, F weighted_scale) {
  return sum + select(plus, weighted_scale, F(0.f) - weighted_scale);
}
LT_FN float feedback_weighted_scale(u32 weight, u16 scale) {
  return static_cast<float>(weight) * bf16_decode(u32{scale});
}
LT_FN float feedback_inverse(u32 weights) { return 1.f / static_cast<float>(weights); }
