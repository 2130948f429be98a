// Finds the position of a warp's tile: its item and its elements. Included in the namespace of a .cu file after
// device-inl.h.

// Does find_item with all lanes of a warp, each of which reads one of 32 starts at a time.
LT_FN i64 find_item_by_warp(const i64* starts, i64 count, i64 tile) {
  const i64 lane = threadIdx.x % 32;
  i64 low = 0, span = count;
  while (span > 1) {
    const i64 step = (span + 31) / 32, at = low + lane * step;
    // The first lane's entry starts at or before the tile.
    const u32 before = __ballot_sync(kAllLanes, lane == 0 || (lane * step < span && starts[at] <= tile));
    const i64 last = __popc(before) - 1, left = span - last * step;
    low += last * step;
    span = left < step ? left : step;
  }
  return low;
}

// The first element of a block: its number in the parameter and in its row, and its index for random bits.
struct Cursor {
  i64 element, column, index;

  // `item_block` is counted from the item's first block.
  LT_METHOD void find(const DeviceItem& item, i64 item_block) {
    const i64 per_row = (item.row_length + kBlock - 1) / kBlock, block = item.first_block + item_block;
    const i64 row = block / per_row;
    column = (block - row * per_row) * kBlock;
    element = row * item.row_length + column;
    index = item.first_index + row * item.row_stride + column;
  }
  LT_METHOD void advance(const DeviceItem& item, i64 blocks) {
    element += blocks * kBlock;
    column += blocks * kBlock;
    index += blocks * kBlock;
    while (column >= item.row_length) {
      // The row's last block may have been short.
      const i64 padded = (item.row_length + kBlock - 1) / kBlock * kBlock;
      column -= padded;
      element -= padded - item.row_length;
      index += item.row_stride - padded;
    }
  }
};
