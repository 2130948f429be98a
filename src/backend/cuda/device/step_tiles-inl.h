// The driver of steps: a warp takes a tile of kTileBlocks blocks of one item, two blocks at a time (step-inl.h). Where
// an operand is out of range, or memory is strided, the two go an element after the other (slow-inl.h), to the same
// bits. Included in the namespace of a .cu file after slow-inl.h and step-inl.h.

struct StepArguments {
  const DeviceItem* items;
  const i64* starts;
  i64 count, tiles;
  const void* tables;
  const cuda_kernels::ReplayState* replay;
  const DeviceNorms* norms;  // beside the items, of a rule that has them
};

// True in a replay of a recorded step that was not prepared.
LT_FN bool is_void(const cuda_kernels::ReplayState* replay) { return replay && replay->prepared == replay->done; }

// The rounds of a plain tile, up to one that is out of range: behind that a tile goes on carefully, for where one
// operand is small, others are. A lane loads the next one's words before it makes codes of this one's states, so that
// its warp does not wait for them.
template <class Lanes, class Args, class Shared>
LT_FN void step_plain(Tile& tile, const Args& args, const Shared& shared, typename Lanes::Held& held) {
  const bool is_first = threadIdx.x % 32 == 0;
  if (is_first) tile.rest = tile.blocks;
  LaneAt next = tile.place_straight(0);
  typename Lanes::Words ahead;
  const auto load = [&](const LaneAt& at) {
    if constexpr (Lanes::kHolds)
      Lanes::load_held(tile, common_form(), at, ahead, held);
    else
      Lanes::load(tile, common_form(), at, ahead);
  };
  if constexpr (Lanes::kHolds) Lanes::take_scales(tile, held);
  load(next);
  for (bool goes_on = true; goes_on;) {
    const LaneAt at = next;
    const int b = at.block & ~1;  // both halves', which are an even block and the one behind it
    goes_on = b + 2 < tile.blocks;
    typename Lanes::Words words = ahead;
    const bool is_done = Lanes::template step<true, Lanes::kHolds>(
        tile, args, shared, common_form(), at, words,
        [&] {
          if (!goes_on) return;
          next = tile.place_straight(b + 2);
          load(next);
        },
        &held);
    if (!is_done) {
      if (is_first) tile.rest = b, tile.careful = true;
      break;
    }
  }
  __syncwarp();
  if constexpr (Lanes::kHolds) Lanes::give_scales(tile, held, tile.rest);
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
  for (i64 t = item_id() / 32; t < a.tiles; t += item_count() / 32) {
    const i64 of = find_item_by_warp(a.starts, a.count, t);
    const DeviceItem& item = a.items[of];
    if (is_stopped(item)) continue;
    typename R::Args args;
    __builtin_memcpy(&args, item.args, sizeof args);
    __syncwarp();  // all are done with the tile before
    if (threadIdx.x % 32 == 0)
      tile.number = t,
      tile.fill(item, (t - a.starts[of]) * cuda_kernels::kTileBlocks, Lanes::takes(item, args), Lanes::formats().of);
    __syncwarp();
    if constexpr (Lanes::kLoadsAhead) {
      static_assert(Lanes::kHasCareful);
      if (tile.plain) step_plain<Lanes>(tile, args, shared, held[threadIdx.x / 32]);
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
          is_done = Lanes::template step<true>(tile, args, shared, common_form(), at, words, [] {});
        } else {
          Lanes::load(tile, form, at, words);
          is_done = Lanes::template step<false>(tile, args, shared, form, at, words, [] {});
        }
        if (Lanes::kHasCareful && !is_done && !tile.careful) {
          tile.be_careful();
          continue;
        }
      }
      // Where it works is found again, for no registers are left to keep that.
      if (!is_done) slow_blocks<R, C>(tile.slow_block(tile.place(tile.rest)), tables);
      tile.advance();
    }
    t = tile.number;  // in between the registers are needed
  }
}
