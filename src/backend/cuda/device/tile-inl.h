// A warp's tile. It is in shared memory, because the states of 16 elements need the registers. Included in the
// namespace of a .cu file after tiles-inl.h, slow-inl.h and packed-inl.h.

LT_FN bool is_aligned(const void* p) { return (reinterpret_cast<u64>(p) & 15u) == 0; }

// Returns the number of bits of a weight's residual, or 0 if there is none.
LT_FN int residual_bits(int master) {
  switch (master) {
#define LT_MASTER(number, name, bits) \
  case number:                        \
    return bits;
#include "portable/masters.def"
#undef LT_MASTER
  }
  return 0;
}

// How a state is stored.
struct StateFormat {
  int bits, scales;  // bits per code, scales per block
};

struct alignas(16) Tile {
  const DeviceItem* item;
  i64 next;   // the warp's next tile, among all tiles of the launch
  i64 begin;  // the tile's first block, counted from the item's first
  // Pointers to the tile's first element, code and scale.
  u8 *param, *residual;
  const u8* grad;
  struct {
    const u8* codes;
    const float* scales;
  } state[kMaxStates];
  i64 write_offset;
  Cursor first, cursor[2];  // positions of the tile, and of the warp's halves
  // Keys for the states and weights of the blocks of the two halves, whose indices may lie on either side of 2^32.
  RandomKey key[2][kMaxStates + 1];
  u32 index_high[2];
  // If the indices of all blocks are consecutive, with the same upper bits, cursors stay at the first block.
  bool straight;
  int left;  // elements
  // The loop's state, for which a lane has no registers: the first remaining block, and whether steps are careful.
  int rest;
  bool careful;
  int blocks;
  u32 stochastic;  // as in DeviceItem
  float grad_scale;
  Form form;            // wide if alignment allows it
  bool hot, is_common;  // is_common: the most common form, without a gradient factor, if a round is wide
  bool plain;           // hot and straight, and the most common form in every round

  template <int K>
  LT_METHOD void fill(const DeviceItem& of, i64 first_block, bool is_hot, const StateFormat (&formats)[K]) {
    item = &of;
    begin = first_block;
    const i64 there = of.blocks - first_block;
    blocks = static_cast<int>(there < cuda_kernels::kTileBlocks ? there : cuda_kernels::kTileBlocks);
    stochastic = of.stochastic;
    grad_scale = of.grad_scale;
    write_offset = of.write_offset;
    rest = 0;
    careful = false;
    hot = is_hot;
    first.find(of, first_block);
    for (int half = 0; half < 2; ++half) {
      cursor[half].find(of, first_block + half);
      find_keys(half);
    }
    const i64 all = i64{blocks} * kBlock, in_row = of.row_length - first.column;
    const bool rows_follow = of.row_length % kBlock == 0 && of.row_stride == of.row_length;
    straight = (rows_follow || in_row > all - kBlock) && (first.index + all - 1) >> 32 == first.index >> 32;
    if (straight) {
      left = static_cast<int>(rows_follow || all < in_row ? all : in_row);
    } else {
      Cursor last;
      last.find(of, first_block + blocks - 1);
      left = static_cast<int>(last.element - first.element) + in_block(last);
    }
    find_memory(formats);
  }

  // Returns the lane's place in blocks b and b + 1.
  LT_METHOD LaneAt place(int b) const {
    if (straight) return place_straight(b);
    LaneAt at;
    at.half = static_cast<int>(thread_again() % 32 / kLanes);
    at.there = b + at.half < blocks;
    // A half without a block reads the other half's block and stores nothing.
    if (!at.there) at.half = 0;
    at.block = b + at.half;
    const Cursor& of = cursor[at.half];
    at.element = static_cast<int>(of.element - first.element);
    at.index = static_cast<u32>(of.index);
    const int of_lane = static_cast<int>(thread_again() % kLanes) * kLaneElements;
    const int here = at.there ? in_block(of) - of_lane : 0;
    at.count = here < 0 ? 0 : here < kLaneElements ? here : kLaneElements;
    if (here > 0) at.element += of_lane, at.index += static_cast<u32>(of_lane);
    return at;
  }
  // In a straight tile both halves have the same keys.
  LT_METHOD LaneAt place_straight(int b) const {
    LaneAt at;
    at.half = 0;
    const int mine = b + static_cast<int>(threadIdx.x % 32 / kLanes);
    at.there = mine < blocks;
    at.block = at.there ? mine : b;
    at.element = b * kBlock + static_cast<int>(threadIdx.x % 32) * kLaneElements;
    const int here = left - at.element;
    at.count = here < 0 ? 0 : here < kLaneElements ? here : kLaneElements;
    if (here <= 0) at.element = at.block * kBlock;
    at.index = static_cast<u32>(first.index) + static_cast<u32>(at.element);
    return at;
  }
  // Returns the lane's place in a plain tile for a round of whole sectors with runs of `run` elements.
  LT_METHOD LaneAt place_sectors(int b, int run) const {
    const int element = b * kBlock + static_cast<int>(threadIdx.x % 32) * run;
    return {b, element, static_cast<u32>(first.index) + static_cast<u32>(element), 0, kLaneElements, true};
  }
  // Returns the block of the lane's half for the slow path.
  LT_METHOD SlowBlock slow_block(const LaneAt& at) const {
    const i64 before = i64{at.block} * kBlock;
    const Cursor of = straight ? Cursor{first.element + before, 0, first.index + before} : cursor[at.half];
    const int here = straight ? left - static_cast<int>(before) : in_block(of);
    return {item, item->first_block + begin + at.block, of.element, of.index,
            !at.there       ? 0
            : here < kBlock ? here
                            : kBlock};
  }

  // Called by all lanes.
  LT_METHOD void be_careful() {
    __syncwarp();
    if (thread_again() % 32 == 0) careful = true;
    __syncwarp();
  }
  // Called by all lanes, after a round.
  LT_METHOD void advance() {
    __syncwarp();
    if (thread_again() % 32 == 0) rest += 2;
    if (!straight && thread_again() % kLanes == 0) {
      const int half = static_cast<int>(thread_again() % 32 / kLanes);
      cursor[half].advance(*item, 2);
      if (static_cast<u32>(cursor[half].index >> 32) != index_high[half]) find_keys(half);
    }
    __syncwarp();
  }

 private:
  LT_METHOD int in_block(const Cursor& of) const {
    const i64 in_row = item->row_length - of.column;
    return static_cast<int>(in_row < kBlock ? in_row : kBlock);
  }
  LT_METHOD void find_keys(int half) {
    const u32 high = index_high[half] = static_cast<u32>(cursor[half].index >> 32);
    for (int k = 0; k < kMaxStates; ++k) key[half][k] = rounding_of(*item, k, high).key;
    key[half][kMaxStates] = key_at(RandomKey{item->master.key[0], item->master.key[1]}, high);
  }
  template <int K>
  LT_METHOD void find_memory(const StateFormat (&formats)[K]) {
    const DeviceItem& of = *item;
    const i64 code = first.element - of.origin;
    form = {of.param.dtype, of.grad.dtype, of.master.kind, true};
    param = static_cast<u8*>(of.param.data) + first.element * (form.param ? 2 : 4);
    grad = static_cast<const u8*>(of.grad.data) + first.element * (form.grad ? 2 : 4);
    residual = static_cast<u8*>(of.master.residual) + code * residual_bits(form.master) / 8;
    form.wide = is_aligned(param) && is_aligned(grad) && is_aligned(residual) && write_offset % 16 == 0;
    for (int k = 0; k < K; ++k) {
      state[k] = {static_cast<const u8*>(of.codes[k]) + code * formats[k].bits / 8,
                  of.scales[k] + begin * formats[k].scales};
      form.wide = form.wide && is_aligned(state[k].codes);
    }
    is_common = form == common_form() && grad_scale == 1.f;
    plain = hot && straight && is_common && left % kLaneElements == 0;
  }
};
