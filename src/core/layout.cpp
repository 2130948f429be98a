#include "core/layout.h"

#include <algorithm>
#include <utility>

#include "core/error.h"
#include "lowtide/tensor.h"

namespace lowtide {
namespace {

// Calls run(offset of the first element, stride, count) for each innermost run of elements [first, first + n).
template <class Fn>
void for_each_run(const Layout& layout, int64_t first, int64_t n, Fn&& run) {
  if (layout.contiguous) {
    run(first, int64_t{1}, n);
    return;
  }
  const size_t last = layout.sizes.size() - 1;
  while (n > 0) {
    int64_t rest = first, offset = 0;
    for (size_t d = last; d > 0; --d) {
      offset += rest % layout.sizes[d] * layout.strides[d];
      rest /= layout.sizes[d];
    }
    offset += rest * layout.strides[0];
    const int64_t inner = layout.sizes[last];
    const int64_t count = std::min(n, inner - first % inner);
    run(offset, layout.strides[last], count);
    first += count;
    n -= count;
  }
}

template <class T>
void gather_as(const Layout& layout, const void* tensor, int64_t first, int64_t n, void* packed) {
  T* out = static_cast<T*>(packed);
  for_each_run(layout, first, n, [&](int64_t offset, int64_t stride, int64_t count) {
    const T* in = static_cast<const T*>(tensor) + offset;
    for (int64_t i = 0; i < count; ++i) out[i] = in[i * stride];
    out += count;
  });
}

template <class T>
void scatter_as(const Layout& layout, const void* packed, int64_t first, int64_t n, void* tensor) {
  const T* in = static_cast<const T*>(packed);
  for_each_run(layout, first, n, [&](int64_t offset, int64_t stride, int64_t count) {
    T* out = static_cast<T*>(tensor) + offset;
    for (int64_t i = 0; i < count; ++i) out[i * stride] = in[i];
    in += count;
  });
}

}  // namespace

constexpr int64_t kMost = int64_t{1} << 62;  // largest number of elements, and largest offset

Layout Layout::make(std::span<const int64_t> sizes, std::span<const int64_t> strides) {
  LT_REQUIRE(strides.empty() || strides.size() == sizes.size(),
             "got %zu strides for %zu sizes, wanted one each, or none", strides.size(), sizes.size());
  Layout out;
  out.numel = 1;
  for (const int64_t size : sizes) {
    LT_REQUIRE(size >= 0, "got a size of %lld, wanted 0 or more", ll(size));
    LT_REQUIRE(size == 0 || out.numel <= kMost / size, "got a tensor of more than 2^62 elements, wanted fewer");
    out.numel *= size;
  }
  if (sizes.size() >= 2) out.rows = sizes[0];
  // Computed even for zero rows: a shard without rows still has a block length.
  out.row_length = 1;
  for (const int64_t size : sizes.subspan(sizes.size() >= 2 ? 1 : 0)) {
    LT_REQUIRE(size == 0 || out.row_length <= kMost / size,
               "got a tensor whose rows have more than 2^62 elements, wanted fewer");
    out.row_length *= size;
  }
  out.extent = out.numel;
  if (strides.empty() || out.numel == 0) return out;

  out.extent = 1;
  for (size_t d = 0; d < sizes.size(); ++d) {
    LT_REQUIRE(strides[d] >= 0, "got a stride of %lld, wanted 0 or more", ll(strides[d]));
    if (sizes[d] == 1) continue;
    int64_t reach;
    LT_REQUIRE(!__builtin_mul_overflow(sizes[d] - 1, strides[d], &reach) && reach <= kMost - out.extent,
               "got a tensor that spans more than 2^62 elements, wanted fewer");
    out.extent += reach;
    if (!out.sizes.empty() && out.strides.back() == sizes[d] * strides[d]) {
      out.sizes.back() *= sizes[d];
      out.strides.back() = strides[d];
    } else {
      out.sizes.push_back(sizes[d]);
      out.strides.push_back(strides[d]);
    }
  }
  out.contiguous = out.sizes.empty() || (out.sizes.size() == 1 && out.strides[0] == 1);
  if (out.contiguous) out.sizes.clear(), out.strides.clear();
  return out;
}

bool Layout::overlaps_itself() const {
  if (contiguous || numel <= 1) return false;
  std::vector<std::pair<int64_t, int64_t>> dims;  // (stride, size)
  for (size_t d = 0; d < sizes.size(); ++d) dims.emplace_back(strides[d], sizes[d]);
  std::sort(dims.begin(), dims.end());
  int64_t reach = 0;  // largest offset of the dims so far: the next stride must step over it
  for (const auto& [stride, size] : dims) {
    if (stride <= reach) return true;
    reach += stride * (size - 1);
  }
  return false;
}

int64_t elements_before_block(int64_t row_length, int64_t index, int64_t block) {
  const int64_t per_row = blocks_per_row(row_length, block);
  if (!per_row) return 0;
  return index / per_row * row_length + index % per_row * block;
}

void Layout::gather(const void* tensor, int64_t element_bytes, int64_t first, int64_t n, void* packed) const {
  if (element_bytes == 4)
    gather_as<uint32_t>(*this, tensor, first, n, packed);
  else
    gather_as<uint16_t>(*this, tensor, first, n, packed);
}

void Layout::scatter(const void* packed, int64_t element_bytes, int64_t first, int64_t n, void* tensor) const {
  if (element_bytes == 4)
    scatter_as<uint32_t>(*this, packed, first, n, tensor);
  else
    scatter_as<uint16_t>(*this, packed, first, n, tensor);
}

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
