// One parameter with its gradient, with the same values in every process, for all programs of this folder.
#pragma once

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <vector>

namespace paging {

struct Tensors {
  static constexpr int64_t columns = 1024;
  int64_t rows;
  std::vector<float> param, grad;

  explicit Tensors(int64_t elements) : rows(elements / columns) {
    const auto n = static_cast<size_t>(rows * columns);
    param.resize(n), grad.resize(n);
    uint64_t seed = 1;
    for (size_t i = 0; i < n; ++i) {
      seed = seed * 6364136223846793005u + 1442695040888963407u;
      const float value = static_cast<float>(static_cast<int32_t>(seed >> 32)) * 0x1p-31f;
      param[i] = 0.02f * value;
      grad[i] = 1e-3f * (static_cast<float>(seed >> 56) - 127.5f) * value;
    }
  }

  // FNV-1a over the parameter's bits: contenders that compute the same end with the same one.
  uint64_t hash() const {
    uint64_t sum = 0xcbf29ce484222325u;
    for (const float value : param) {
      uint32_t bits;
      __builtin_memcpy(&bits, &value, sizeof bits);
      sum = (sum ^ bits) * 0x100000001b3u;
    }
    return sum;
  }
};

[[noreturn]] inline void die(const char* what) {
  std::perror(what);
  std::exit(1);
}

}  // namespace paging
