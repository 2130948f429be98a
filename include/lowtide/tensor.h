// Views of tensors that the caller owns. A view never owns and never copies.
#pragma once

#include <cstdint>
#include <vector>

#include "lowtide/export.h"

namespace lowtide {

// Element types of parameters and gradients. Values are part of the C ABI: never renumber.
enum class DType : int32_t { kF32 = 0, kBF16 = 1, kF16 = 2 };

LT_API int64_t dtype_bytes(DType dtype);
LT_API const char* dtype_name(DType dtype);  // "float32", "bfloat16", "float16"

// A strided tensor. Sizes and strides count elements, strides are never negative; empty strides mean contiguous,
// row-major. The optimizer sees it as (rows, row length): dim 0 is the rows, all other dims together are one row;
// tensors of fewer than two dims are one row. Quantization blocks never cross a row.
struct TensorView {
  void* data = nullptr;
  DType dtype = DType::kF32;
  std::vector<int64_t> sizes = {};
  std::vector<int64_t> strides = {};
};

}  // namespace lowtide
