// Traverses a tensor of any strides as rows of elements, in row-major order.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace lowtide {

inline int64_t blocks_per_row(int64_t row_length, int64_t block) { return (row_length + block - 1) / block; }

// The elements before block `index` when rows of `row_length` are cut into blocks of `block` elements.
int64_t elements_before_block(int64_t row_length, int64_t index, int64_t block);

// Sizes and strides in elements, with dims of size 1 dropped and adjacent contiguous dims merged.
struct Layout {
  int64_t numel = 0;
  int64_t rows = 1;                     // dim 0; 1 for tensors of fewer than two dims
  int64_t row_length = 0;               // product of the other dims
  int64_t extent = 0;                   // elements from the first to the last address, inclusive; 0 if empty
  bool contiguous = true;               // row-major without gaps
  std::vector<int64_t> sizes, strides;  // merged; empty if contiguous

  // Empty strides mean contiguous. Throws kInvalidArgument on negative sizes or strides, different numbers of strides
  // and sizes, or more than 2^62 elements.
  static Layout make(std::span<const int64_t> sizes, std::span<const int64_t> strides);

  // True if two elements may share an address (an expanded or self-overlapping view).
  bool overlaps_itself() const;

  // The number of blocks of `block` elements; no block crosses the end of a row.
  int64_t blocks(int64_t block) const { return numel ? rows * blocks_per_row(row_length, block) : 0; }

  // Copies elements [first, first + n), in row-major order, between the tensor and a packed buffer.
  void gather(const void* tensor, int64_t element_bytes, int64_t first, int64_t n, void* packed) const;
  void scatter(const void* packed, int64_t element_bytes, int64_t first, int64_t n, void* tensor) const;
};

}  // namespace lowtide
