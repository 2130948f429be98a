// The dynamic map and its quantizer by their definitions, independent of the library's tables. The values are those of
// bitsandbytes' create_dynamic_map: for i in 0..6, K means of neighbours in linspace(0.1, 1, K + 1) times 10^(i - 6),
// with K = 2^i (signed, both signs) or 2^(i+1) (unsigned); plus 0 and 1.
#pragma once

#include "support/test.h"

namespace lowtide::testing {

// Uses float32 with a fused multiply-add, like PyTorch's AVX2 and AVX-512 builds.
inline std::array<float, 256> make_dynamic_map(bool is_signed) {
  static constexpr float kPowers[] = {1e-6f, 1e-5f, 1e-4f, 1e-3f, 1e-2f, 1e-1f, 1.f};
  std::vector<float> values = {0.f, 1.f};
  for (int i = 0; i < 7; ++i) {
    const int k = is_signed ? 1 << i : 2 << i;
    const float step = (1.f - 0.1f) / static_cast<float>(k);
    const auto point = [&](int j) {
      return j < (k + 1) / 2 ? std::fmaf(step, static_cast<float>(j), 0.1f)
                             : std::fmaf(-step, static_cast<float>(k - j), 1.f);
    };
    for (int j = 0; j < k; ++j) {
      const float value = kPowers[i] * ((point(j) + point(j + 1)) / 2);
      values.push_back(value);
      if (is_signed) values.push_back(-value);
    }
  }
  std::sort(values.begin(), values.end());
  std::array<float, 256> map{};
  std::copy(values.begin(), values.end(), map.begin());
  return map;
}

struct DynamicMap {
  explicit DynamicMap(bool of_signed) : is_signed(of_signed), value(make_dynamic_map(of_signed)) {
    for (size_t i = 0; i < 255; ++i) midpoint[i] = (value[i] + value[i + 1]) * 0.5f;
  }

  bool is_signed;
  std::array<float, 256> value;
  std::array<float, 255> midpoint;  // in float32; a value on it keeps the lower index

  // Returns the entry nearest to x (a value divided by its block's absmax), by walking up the midpoints.
  int nearest(float x) const {
    int code = 0;
    while (code < 255 && x > midpoint[static_cast<size_t>(code)]) ++code;
    return code;
  }
  // Returns the code of a value. A positive second moment never gets 0.
  int encode(float v, float inverse) const {
    const int code = nearest(v * inverse);
    return !is_signed && v > 0 && code == 0 ? 1 : code;
  }
};

}  // namespace lowtide::testing
