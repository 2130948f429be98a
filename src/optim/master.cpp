// Converts weights and residuals to floats and back, outside of steps.

#include "backend/catalog.h"
#include "core/error.h"
#include "lowtide/optimizer.h"

namespace lowtide {
namespace {
#include "portable/portable.h"

template <class T, int kBits>
struct Converter {
  using Rest = std::conditional_t<kBits == 8, int8_t, int16_t>;

  static void join(const void* weights, const void* residual, int64_t n, float* out) {
    const T* half = static_cast<const T*>(weights);
    for (int64_t i = 0; i < n; ++i)
      out[i] = Residual<T, kBits>::join(u32{half[i].bits}, static_cast<u32>(static_cast<const Rest*>(residual)[i]));
  }
  static void split(const float* in, int64_t n, void* weights, void* residual) {
    for (int64_t i = 0; i < n; ++i) {
      u32 half, rest;
      Residual<T, kBits>::split(in[i], half, rest);
      static_cast<T*>(weights)[i].bits = static_cast<u16>(half);
      static_cast<Rest*>(residual)[i] = static_cast<Rest>(rest);
    }
  }
};

// Weights without a residual.
template <class T>
struct Converter<T, 0> {
  static float decode(bf16 x) { return bf16_decode(u32{x.bits}); }
  static float decode(f16 x) { return f16_decode(u32{x.bits}); }
  static void encode(float x, bf16& to) { to.bits = static_cast<u16>(bf16_encode(x)); }
  static void encode(float x, f16& to) { to.bits = static_cast<u16>(f16_encode(x)); }

  static void join(const void* weights, const void*, int64_t n, float* out) {
    for (int64_t i = 0; i < n; ++i) out[i] = decode(static_cast<const T*>(weights)[i]);
  }
  static void split(const float* in, int64_t n, void* weights, void*) {
    for (int64_t i = 0; i < n; ++i) encode(in[i], static_cast<T*>(weights)[i]);
  }
};

// Calls with(Converter) for weights of type `dtype`.
template <class Fn>
void convert(const std::string& master, DType dtype, const void* weights, const void* residual, const void* floats,
             int64_t n, Fn&& with) {
  const int kind = find_master(master);
  LT_REQUIRE(dtype == DType::kBF16 || dtype == DType::kF16,
             "got weights of element type %d, wanted bfloat16 or float16", static_cast<int>(dtype));
  LT_REQUIRE(n >= 0, "got %lld weights, wanted 0 or more", ll(n));
  const bool complete = weights && floats && (residual || master_info(kind).residual_bits == 0);
  LT_REQUIRE(n == 0 || complete,
             "got a null pointer for %lld weights, their residual or their floats, wanted memory for each", ll(n));
  switch (kind) {
    case 0:
      return dtype == DType::kBF16 ? with(Converter<bf16, 0>()) : with(Converter<f16, 0>());
#define LT_MASTER(number, name, bits) \
  case number:                        \
    return dtype == DType::kBF16 ? with(Converter<bf16, bits>()) : with(Converter<f16, bits>());
#include "portable/masters.def"
#undef LT_MASTER
  }
}

}  // namespace

void join_master(const std::string& master, DType dtype, const void* weights, const void* residual, int64_t n,
                 float* out) {
  convert(master, dtype, weights, residual, out, n, [&](auto as) { as.join(weights, residual, n, out); });
}

void split_master(const std::string& master, DType dtype, const float* in, int64_t n, void* weights, void* residual) {
  convert(master, dtype, weights, residual, in, n, [&](auto as) { as.split(in, n, weights, residual); });
}

}  // namespace lowtide
