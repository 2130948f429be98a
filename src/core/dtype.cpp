#include "core/error.h"
#include "lowtide/tensor.h"

namespace lowtide {

int64_t dtype_bytes(DType dtype) { return dtype == DType::kF32 ? 4 : 2; }

const char* dtype_name(DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return "float32";
    case DType::kBF16:
      return "bfloat16";
    case DType::kF16:
      return "float16";
  }
  return "unknown";
}

}  // namespace lowtide
