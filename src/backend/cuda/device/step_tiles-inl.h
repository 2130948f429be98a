// The driver of steps: a warp takes a tile of kTileBlocks blocks of one item, two blocks at a time (step-inl.h). If an
// operand is out of range or memory is strided, both are stepped element by element (slow-inl.h), with the same bits.
// Included in the namespace of a .cu file after slow-inl.h and step-inl.h.

struct StepArguments {
  const DeviceItem* items;
  const i64* starts;
  i64 count, tiles;
  const void* tables;
  const cuda_kernels::ReplayState* replay;
  const DeviceNorms* norms;  // parallel to items, for a rule with norms
  u64* taken;                // number of tiles that warps have taken after their first
};

// Returns true in a replay of a recorded step that was not prepared.
LT_FN bool is_void(const cuda_kernels::ReplayState* replay) { return replay && replay->prepared == replay->done; }

// Steps the whole blocks of a plain tile with at least two blocks, two at a time, up to a round that is out of range.
// After that the tile goes on carefully, because small operands come together. A lane that has the registers loads the
// next round's words before it encodes this round's states, so that its warp does not wait for the words.
template <class Lanes, class Args, class Shared>
LT_FN void step_plain(Tile& tile, const Args& args, const Shared& shared, typename Lanes::Held& held) {
  const int blocks = tile.left / (2 * kBlock) * 2;
  typename Lanes::Words ahead;
  const auto load = [&](int b) { Lanes::load_sectors(tile, tile.place_sectors(b, Lanes::kRun), ahead, held); };
  Lanes::take_scales(tile, held);
  int b = 0;
  if constexpr (Lanes::kLoadsAhead) load(0);
  for (; b < blocks; b += 2) {
    if constexpr (!Lanes::kLoadsAhead) load(b);
    typename Lanes::Words words = ahead;
    const auto next = [&] {
      if (Lanes::kLoadsAhead && b + 2 < blocks) load(b + 2);
    };
    if (!Lanes::template step<Round::kSectors>(tile, args, shared, common_form(), tile.place_sectors(b, Lanes::kRun),
                                               words, next, &held))
      break;
  }
  Lanes::give_scales(tile, held, b);
  if (threadIdx.x % 32 == 0) tile.rest = b, tile.careful = b < blocks;
  __syncwarp();
}

template <class R, class C, class Lanes>
LT_FN void step_tiles(const StepArguments& a) {
  __shared__ typename Lanes::Shared shared;
  __shared__ Tile of_warp[cuda_kernels::kWarps];
  __shared__ typename Lanes::Held held[cuda_kernels::kWarps];
  if (is_void(a.replay)) return;
  Lanes::Codec::fill(shared, a.tables);
  __syncthreads();
  const auto* const tables = static_cast<const typename C::Tables*>(a.tables);
  Tile& tile = of_warp[threadIdx.x / 32];
  // Each warp takes the next tile that is left. If warps had fixed shares, a warp that begins late, because another
  // kernel occupies its multiprocessor, would end late. A warp asks for its next tile while it still has one, so it
  // does not wait for the answer.
  for (i64 t = item_id() / 32; t < a.tiles; t = tile.next) {
    const i64 of = find_item_by_warp(a.starts, a.count, t);
    const DeviceItem& item = a.items[of];
    typename R::Args args;
    __builtin_memcpy(&args, item.args, sizeof args);
    __syncwarp();  // all lanes are done with the previous tile
    if (threadIdx.x % 32 == 0) {
      const u64 taken = atomicAdd(a.taken, u64{1});
      tile.fill(item, (t - a.starts[of]) * cuda_kernels::kTileBlocks, Lanes::takes(item, args), Lanes::formats().of);
      tile.next = item_count() / 32 + static_cast<i64>(taken);
    }
    __syncwarp();
    if (is_stopped(item)) continue;
    if constexpr (Lanes::kHasCommon) {
      if (tile.plain && tile.left >= 2 * kBlock) step_plain<Lanes>(tile, args, shared, held[threadIdx.x / 32]);
    }
    while (tile.rest < tile.blocks) {
      bool is_done = false;
      if (tile.hot) {
        const LaneAt at = tile.place(tile.rest);
        Form form = tile.form;
        if (!tile.plain) {
          // Rows may begin or end inside a lane's elements.
          const bool not_whole = ((at.element | at.count) & (kLaneElements - 1)) != 0;
          form.wide = !__any_sync(kAllLanes, !form.wide || not_whole);
        }
        typename Lanes::Words words;
        if (!tile.careful && Lanes::kHasCommon && form.wide && tile.is_common) {
          Lanes::load(tile, common_form(), at, words);
          is_done = Lanes::template step<Round::kCommon>(tile, args, shared, common_form(), at, words, [] {});
        } else {
          Lanes::load(tile, form, at, words);
          is_done = Lanes::template step<Round::kAny>(tile, args, shared, form, at, words, [] {});
        }
        if (Lanes::kHasCareful && !is_done && !tile.careful) {
          tile.be_careful();
          continue;
        }
      }
      // Finds its position again, because no registers are left to keep it.
      if (!is_done) slow_blocks<R, C>(tile.slow_block(tile.place(tile.rest)), tables);
      tile.advance();
    }
  }
}
