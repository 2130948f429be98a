// Error feedback by its formulas, one value at a time, without the portable kernels.
#pragma once

#include "backend/backend.h"
#include "support/half_reference.h"
#include "support/sign_reference.h"
#include "support/test.h"

namespace lowtide::testing {

inline constexpr int64_t kReferenceBlock = 1024;

inline float scale_value(uint16_t bits) {
  const uint32_t word = uint32_t{bits} << 16;
  float out;
  std::memcpy(&out, &word, sizeof out);
  return out;
}

struct FeedbackReference {
  std::vector<float> residual;  // first the decoded residual, then the exact one
  Bits bits;
  std::vector<uint16_t> scales;

  // Adds every sixteenth magnitude into each of 16 lanes, and halves the lanes until one is left.
  static float sum_of(const float* c, int64_t n) {
    std::vector<float> lane(16, 0.f);
    for (int64_t i = 0; i < n; ++i) lane[static_cast<size_t>(i % 16)] += std::fabs(c[i]);
    while (lane.size() > 1) {
      const size_t half = lane.size() / 2;
      for (size_t k = 0; k < half; ++k) lane[k] += lane[half + k];
      lane.resize(half);
    }
    return lane[0];
  }

  // values: already multiplied by value_scale. Sets bits and scales from sign 0 on.
  void run(const std::vector<float>& values) {
    const auto count = static_cast<int64_t>(values.size());
    bits.assign(sign_bytes(count), 0);
    scales.clear();
    for (int64_t first = 0; first < count; first += kReferenceBlock) {
      const int64_t n = std::min(kReferenceBlock, count - first);
      std::vector<float> c;
      for (int64_t i = first; i < first + n; ++i)
        c.push_back(values[static_cast<size_t>(i)] + residual[static_cast<size_t>(i)]);
      scales.push_back(bf16_nearest(static_cast<double>(sum_of(c.data(), n) / static_cast<float>(n))));
      const float scale = scale_value(scales.back());
      for (int64_t i = 0; i < n; ++i) {
        const bool plus = c[static_cast<size_t>(i)] >= 0;
        const int64_t at = first + i;
        bits[static_cast<size_t>(at / 8)] |= static_cast<unsigned char>(plus << (at % 8));
        residual[static_cast<size_t>(at)] =
            plus ? c[static_cast<size_t>(i)] - scale : c[static_cast<size_t>(i)] + scale;
      }
    }
  }

  // The mean of the voters' signs times scales.
  static std::vector<float> mean(int64_t count, const std::vector<Bits>& ballots,
                                 const std::vector<std::vector<uint16_t>>& of_scales,
                                 const std::vector<uint32_t>& weights) {
    std::vector<float> out;
    uint32_t votes = 0;
    for (const uint32_t weight : weights) votes += weight;
    const float inverse = 1.f / static_cast<float>(votes);
    for (int64_t i = 0; i < count; ++i) {
      float sum = 0;
      for (size_t v = 0; v < ballots.size(); ++v) {
        if (weights[v] == 0) continue;
        const float sent =
            static_cast<float>(weights[v]) * scale_value(of_scales[v][static_cast<size_t>(i / kReferenceBlock)]);
        sum = sign_of(ballots[v], i) ? sum + sent : sum - sent;
      }
      out.push_back(sum * inverse);
    }
    return out;
  }
};

}  // namespace lowtide::testing
