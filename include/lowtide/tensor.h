// Views of tensors that the caller owns. A view neither owns nor copies.
#pragma once

#include <cstdint>
#include <vector>

#include "lowtide/export.h"

namespace lowtide {

// Element types of parameters and gradients. Values are part of the C ABI: never renumber.
enum class DType : int32_t { kF32 = 0, kBF16 = 1, kF16 = 2 };

LT_API int64_t dtype_bytes(DType dtype);
LT_API const char* dtype_name(DType dtype);  // "float32", "bfloat16", "float16"

// A strided tensor. Sizes and strides count elements; strides are never negative; empty strides mean contiguous,
// row-major. The optimizer treats it as rows: dim 0 counts the rows, all other dims together form one row; a tensor
// with fewer than two dims is one row. Quantization blocks never cross a row.
struct TensorView {
  void* data = nullptr;
  DType dtype = DType::kF32;
  std::vector<int64_t> sizes = {};
  std::vector<int64_t> strides = {};
};

// Loss scaling (torch.amp.GradScaler) by words in memory of the parameters' device, which every replay of a recorded step
// reads. The memory must outlive the replays.
struct LossScaling {
  const float* scale = nullptr;      // gradients are divided by it; nullptr: they have been divided
  const float* found_inf = nullptr;  // above 0: the replay changes nothing; nullptr: no loss scaling
};

}  // namespace lowtide
