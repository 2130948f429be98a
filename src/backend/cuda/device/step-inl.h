// The driver of steps: a warp takes a tile of kTileBlocks blocks of one item, two blocks at a time, 16 lanes each.
// Where all is contiguous and aligned, and operands are in range, a lane has 16 elements in registers; else the two
// blocks go an element after the other (slow_blocks), to the same bits. Included in the namespace of a .cu file after
// tiles-inl.h, backend/kernels/step-inl.h, lane_codec-inl.h and real-inl.h.

inline constexpr int kLanes = kBlock / kLaneElements;
#ifdef LT_CUDA_FAST
inline constexpr bool kIsFast = true;
#else
inline constexpr bool kIsFast = false;
#endif

struct StepArguments {
  const DeviceItem* items;
  const i64* starts;
  i64 count, tiles;
  const void* tables;
  const cuda_kernels::ReplayState* replay;
};

// Whether this is the replay of a recorded step for which nothing has been prepared.
LT_FN bool is_void(const cuda_kernels::ReplayState* replay) { return replay && replay->prepared == replay->done; }

// The tile of a warp, as its lanes know it. It lies in shared memory, for the states of 16 elements need the
// registers.
struct alignas(16) Tile {
  const DeviceItem* item;
  i64 begin;         // its first block, counted from the item's first
  i64 codes_origin;  // elements before the first code
  i64 write_offset;
  u8* param;
  const u8* grad;
  struct {
    const u8* codes;
    const float* scales;
  } state[kMaxStates];
  Cursor cursor[2];  // of the two halves of the warp
  int blocks;
  u32 hot;
  float grad_scale;

  LT_METHOD void fill(const DeviceItem& of, i64 first_block, bool is_hot) {
    item = &of;
    begin = first_block;
    codes_origin = of.origin;
    write_offset = of.write_offset;
    param = static_cast<u8*>(of.param.data);
    grad = static_cast<const u8*>(of.grad.data);
    for (int k = 0; k < kMaxStates; ++k) state[k] = {static_cast<const u8*>(of.codes[k]), of.scales[k]};
    for (int half = 0; half < 2; ++half) cursor[half].find(of, first_block + half);
    const i64 there = of.blocks - first_block;
    blocks = static_cast<int>(there < cuda_kernels::kTileBlocks ? there : cuda_kernels::kTileBlocks);
    hot = is_hot;
    grad_scale = of.grad_scale;
  }
  // By one lane of the half.
  LT_METHOD void advance(int half) { cursor[half].advance(*item, 2); }
};

// For states that are rounded stochastically, also the keys of a half's block, which lies on one side of 2^32.
struct RandomTile : Tile {
  u32 stochastic;  // as DeviceItem
  u32 index_high[2];
  RandomKey key[2][kMaxStates];

  LT_METHOD void fill(const DeviceItem& of, i64 first_block, bool is_hot) {
    Tile::fill(of, first_block, is_hot);
    stochastic = of.stochastic;
    for (int half = 0; half < 2; ++half) find_keys(half);
  }
  LT_METHOD void advance(int half) {
    Tile::advance(half);
    if (static_cast<u32>(cursor[half].index >> 32) != index_high[half]) find_keys(half);
  }

 private:
  LT_METHOD void find_keys(int half) {
    index_high[half] = static_cast<u32>(cursor[half].index >> 32);
    for (int k = 0; k < kMaxStates; ++k) key[half][k] = rounding_of(*item, k, index_high[half]).key;
  }
};

// A block on the slow path, of `count` elements (0: there is none).
struct SlowBlock {
  const DeviceItem* item;
  i64 block, element, index;
  int count;
};

// Lane j of 16 takes elements j, 16 + j, ... Twice: for the absmax, and to store; nothing that the first time reads is
// written before the second is done with it.
template <class R, class C>
LT_FN void slow_blocks(const SlowBlock& of, const typename C::Tables* tables) {
  constexpr int K = R::kStates;
  const DeviceItem& item = *of.item;
  const int lane = static_cast<int>(threadIdx.x % kLanes);
  typename R::Args args;
  __builtin_memcpy(&args, item.args, sizeof args);
  const auto place = [&](int j) {
    return BlockElement{of.item, of.block, of.element + j, static_cast<u64>(of.index + j), static_cast<u32>(j), true};
  };
  // Number i of the lane's elements. Of pairs of codes a lane stores both.
  const auto element = [&](int i) { return kHasPairs<C> ? i / 2 * 2 * kLanes + 2 * lane + i % 2 : i * kLanes + lane; };
  const auto next = [&](const BlockElement& at, float(&state)[K ? K : 1], float& p) {
    each<K>([&](auto k) { state[k] = decode_element<C, ((R::kSigned >> k) & 1) != 0>(tables, at, k); });
    p = load_weight(at);
    const float g = load(item.grad, at.element) * item.grad_scale;
    p = R::template step<float>(p, g, state, args);
    if constexpr (C::kScaled) each<K>([&](auto k) { state[k] = limited(state[k]); });
  };
  u32 most[K ? K : 1][kMostScales] = {};
  if constexpr (C::kScaled && K > 0) {
#pragma unroll 1
    for (int i = 0; element(i) < of.count; ++i) {
      const int j = element(i);
      float state[K], p;
      next(place(j), state, p);
      each<K>([&](auto k) {
        u32& largest = most[k][scale_of_block<C, ((R::kSigned >> k) & 1) != 0>(static_cast<u32>(j))];
        largest = bits(abs(state[k])) > largest ? bits(abs(state[k])) : largest;
      });
    }
    each<K>([&](auto k) {
      for (int s = 0; s < kScales<C, ((R::kSigned >> k) & 1) != 0>; ++s) most[k][s] = max_of_lanes(most[k][s], kLanes);
    });
  }
#pragma unroll 1
  for (int i = 0; element(i) < of.count; ++i) {
    const int j = element(i);
    const BlockElement at = place(j);
    float state[K ? K : 1], p;
    next(at, state, p);
    store_weight(at, p);
    each<K>([&](auto k) {
      constexpr bool kSigned = ((R::kSigned >> k) & 1) != 0;
      store_state<C, kSigned>(tables, at, k, state[k],
                              block_scale<C, kSigned>(as_float(most[k][scale_of_block<C, kSigned>(at.lane)])).inverse);
    });
  }
  if constexpr (C::kScaled) {
    __syncwarp();
    if (lane == 0 && of.count)
      each<K>([&](auto k) {
        constexpr bool kSigned = ((R::kSigned >> k) & 1) != 0;
        constexpr int kOfBlock = kScales<C, kSigned>;
        for (int s = 0; s < kOfBlock; ++s)
          new_scales_of(item, k)[(of.block - item.first_block) * kOfBlock + s] =
              block_scale<C, kSigned>(as_float(most[k][s])).scale;
      });
  }
}

LT_FN bool is_aligned(const void* p) { return (reinterpret_cast<u64>(p) & 15u) == 0; }

// Rules that divide a first moment by the square root of a second one: operands must be in range for Real.
template <class R>
inline constexpr bool kDivides = std::is_base_of_v<AdamBase, R>;

// Rules whose states LaneCodec has codes for: second moments are looked at with those that divide, and as theirs are.
template <class R>
inline constexpr bool kHasHotPath =
    !kHasNorms<R> && R::kStates <= 2 && (kDivides<R> || R::kSigned == (1u << (R::kStates <= 2 ? R::kStates : 0)) - 1u);

// Codecs with a LaneCodec. Those that may be rounded to nearest, and those that may be rounded stochastically, have
// kernels of their own for it.
template <class C>
inline constexpr bool kHasLaneCodec = requires {
  sizeof(LaneCodec<C>);
};
template <class C>
inline constexpr bool kHasNearest = [] {
  if constexpr (requires { C::kNeedsRandom; })
    return !(C::kNeedsRandom[0] && C::kNeedsRandom[1]);
  else
    return true;
}();
template <class C>
inline constexpr bool kHasRandom = C::kError > 0;

// max(x, y), NaN if one is.
LT_FN float max_or_nan(float x, float y) {
#ifdef __CUDA_ARCH__
  asm("max.NaN.f32 %0, %0, %1;" : "+f"(x) : "f"(y));
  return x;
#else
  return x >= y || x != x ? x : y;
#endif
}

// The least of what is not 0, as bits less 1.
LT_FN u32 min_but_zero(u32 least, u32 u) {
#if defined __CUDA_ARCH__ && __CUDA_ARCH__ >= 900
  return __viaddmin_u32(u, ~0u, least);
#else
  return u - 1 < least ? u - 1 : least;
#endif
}

// Rules whose steps are never -0 where HotBlocks takes them: Real's move does without the addition that would turn it.
// With a step size of 2^-27, quotients of 2^-121 or more make steps of 2^-148 or more; Lion's are multiples of lr.
template <class R>
using Float = std::conditional_t<kDivides<R> || std::is_same_v<R, Lion>, Real, float>;
LT_FN float value_of(float x) { return x; }
LT_FN float value_of(Real x) { return x.x; }

// The hot path. P, G: element types of parameter and gradient. kRandom: each item says which of its states are rounded
// stochastically; else it has none.
template <class R, class C, class P, class G, bool kRandom>
struct HotBlocks {
  using Codec = LaneCodec<C>;
  using Shared = std::conditional_t<kRandom, typename Codec::RandomShared, typename Codec::Shared>;
  using WarpTile = std::conditional_t<kRandom, RandomTile, Tile>;
  static constexpr int K = R::kStates;
  static_assert(kHasHotPath<R>);
  template <int k>
  struct State {
    static constexpr bool kSigned = ((R::kSigned >> k) & 1) != 0;
    using Codes = typename Codec::template Codes<kSigned>;
    // The largest magnitude that is in range, and the least but 0, as bits without the sign (a signed state's bits are
    // shifted for it), less 1. Others are left to the slow path. See Real and LaneCodec.
    static constexpr float kMost = kSigned ? (C::kScaled ? 0x1p22f : 0x1p60f) : 0x1p24f;
    static constexpr u32 kLeast = kSigned ? (31u << 24) - 1u : (27u << 23) - 1u;  // of 2^-96, of 2^-100
  };
  struct StateCodes {
    typename State<0>::Codes first;
    typename State<1>::Codes second;
    LT_METHOD auto& of(Index<0>) { return first; }
    LT_METHOD auto& of(Index<1>) { return second; }
  };

  // Whether all of an item's blocks whose sizes are multiples of 16 may take this path.
  LT_FN bool takes(const DeviceItem& item, const typename R::Args& args) {
    bool yes = item.param.dim_count == 0 && item.grad.dim_count == 0 && item.param.dtype == Packed<P>::kDtype &&
               item.grad.dtype == Packed<G>::kDtype && is_aligned(item.param.data) && is_aligned(item.grad.data) &&
               item.origin % kLaneElements == 0 && item.write_offset % 16 == 0 && item.master.kind == 0;
    // A lane's neighbours share their random bits, and a block its keys.
    if constexpr (kRandom)
      yes = yes && ((item.first_index | item.row_stride) & (kBlock - 1)) == 0 &&
            (kHasNearest<C> || item.stochastic == (1u << K) - 1u);
    else
      yes = yes && item.stochastic == 0;
    for (int k = 0; k < K; ++k) yes = yes && is_aligned(item.codes[k]);
    if constexpr (kDivides<R>)
      yes = yes && args.eps >= 0x1p-60f && args.eps <= 0x1p10f && args.inverse_sqrt_bias >= 0.f &&
            args.inverse_sqrt_bias <= 0x1p12f && args.step_size >= 0x1p-27f;
    if constexpr (std::is_same_v<R, Lion>) yes = yes && args.lr >= 0x1p-100f;
    return yes;
  }

  static constexpr bool kLooksAtMost = K > 0 && (C::kScaled || kDivides<R>);
  static constexpr bool kLooksAtLeast = !kIsFast && kDivides<R>;

  // False, and nothing done, if an operand is out of range: the same for the warp. `inside`: whether the lane has 16
  // elements, which begin with `element`; else it is that of others, and its work is for nothing. scale_at: likewise.
  // seen: the half whose block it is.
  LT_FN bool step(const WarpTile& tile, const typename R::Args& args, const Shared& shared, i64 element, i64 scale_at,
                  bool inside, int seen) {
    Packed<P> param;
    Packed<G> grad;
    StateCodes codes;
    const i64 code_at = (element - tile.codes_origin) * static_cast<i64>(sizeof(typename C::Code));
    float scale[K ? K : 1] = {};
    load_words(param.word, tile.param + element * static_cast<i64>(sizeof(P)));
    load_words(grad.word, tile.grad + element * static_cast<i64>(sizeof(G)));
    each<K>([&](auto k) {
      load_words(codes.of(k).word, tile.state[k].codes + code_at);
      if constexpr (C::kScaled) scale[k] = __ldcs(tile.state[k].scales + scale_at);
    });
    float state[K ? K : 1][kLaneElements], most_here[K ? K : 1] = {};
    u32 least_here[2] = {~0u, ~0u};
    const float grad_scale = tile.grad_scale;
#pragma unroll
    for (int e = 0; e < kLaneElements; e += 2) {
      float next[2];
#pragma unroll
      for (int one = 0; one < 2; ++one) {
        using F = Float<R>;
        F s[K ? K : 1];
        each<K>([&](auto k) {
          const float x = codes.of(k).get(shared, e + one);
          s[k] = C::kScaled ? x * scale[k] : x;
        });
        const F g = grad.get(e + one) * grad_scale;
        next[one] = value_of(R::template step<F>(param.get(e + one), g, s, args));
        each<K>([&](auto k) {
          state[k][e + one] = value_of(s[k]);
          if constexpr (kLooksAtMost) most_here[k] = max_or_nan(most_here[k], abs(value_of(s[k])));
          if constexpr (kLooksAtLeast) {
            const u32 u = bits(value_of(s[k]));
            least_here[k] = min_but_zero(least_here[k], State<k>::kSigned ? u + u : u);
          }
        });
      }
      param.set_two(e, next[0], next[1]);
    }
    const u32 whole = inside ? ~0u : 0u;  // no branch, of which the compiler would make two copies of all
    bool out = false;
    each<K>([&](auto k) {
      if constexpr (kLooksAtMost) {
        most_here[k] = as_float(bits(most_here[k]) & whole);
        out = out | !(most_here[k] <= State<k>::kMost);
      }
      if constexpr (kLooksAtLeast) out = out | ((least_here[k] | ~whole) < State<k>::kLeast);
    });
    if constexpr (C::kScaled && K > 0)
      each<K>([&](auto k) {
        for (int distance = kLanes / 2; distance > 0; distance /= 2)
          most_here[k] = max_or_nan(most_here[k], __shfl_xor_sync(kAllLanes, most_here[k], distance));
        // A block of zeros has no reciprocal; one of denormals or nearly so has none in range.
        out = out | ((most_here[k] != 0.f) & (most_here[k] < 0x1p-96f));
      });
    if constexpr (kLooksAtMost || kLooksAtLeast)
      if (__any_sync(kAllLanes, out)) return false;

    each<K>([&](auto k) {
      bool stochastic = kRandom;
      if constexpr (kRandom) {
        if constexpr (kHasNearest<C>) stochastic = ((tile.stochastic >> k) & 1) != 0;
        if (stochastic) round(tile, shared, k, element, seen, state[k], most_here[k], codes.of(k));
      }
      if constexpr (kHasNearest<C>)
        if (!stochastic) {
          float factor = 1.f;
          if constexpr (C::kScaled) factor = Codec::template factor<State<k>::kSigned>(most_here[k]);
#pragma unroll
          for (int e = 0; e < kLaneElements; e += 4) codes.of(k).encode_four(shared, e, state[k] + e, factor);
        }
      u8* const to = const_cast<u8*>(tile.state[k].codes) + tile.write_offset;
      if (inside) store_words(codes.of(k).word, to + code_at);
      if constexpr (C::kScaled)
        if (inside && threadIdx.x % kLanes == 0)
          __stcs(reinterpret_cast<float*>(reinterpret_cast<u8*>(const_cast<float*>(tile.state[k].scales + scale_at)) +
                                          tile.write_offset),
                 Codec::template scale<State<k>::kSigned>(most_here[k]));
    });
    if (inside) store_words(param.word, tile.param + element * static_cast<i64>(sizeof(P)));
    return true;
  }

 private:
  // Four neighbours share a hash (random_16), and a lane's first index is a multiple of 16.
  template <int k>
  LT_FN void round(const WarpTile& tile, const Shared& shared, Index<k>, i64 element, int seen,
                   const float (&state)[kLaneElements], float absmax, typename State<k>::Codes& codes) {
    float inverse = 1.f;
    if constexpr (C::kScaled) inverse = Codec::template inverse<State<k>::kSigned>(absmax);
    const RandomKey key = tile.key[seen][k];
    const u32 first = static_cast<u32>(tile.cursor[seen].index + (element - tile.cursor[seen].element)) / 4;
#pragma unroll
    for (int e = 0; e < kLaneElements; e += 4) {
      u32 random[2];
      random_four(first + static_cast<u32>(e) / 4, key, random);
      codes.round_four(shared, e, state + e, inverse, random);
    }
  }
};

// No hot path: for items of any types.
struct NoHotBlocks {
  struct Shared {};
  struct Codec {
    LT_FN void fill(Shared&, const void*) {}
  };
  using WarpTile = Tile;
  template <class Item, class Args>
  LT_FN bool takes(const Item&, const Args&) {
    return false;
  }
  template <class Args>
  LT_FN bool step(const Tile&, const Args&, const Shared&, i64, i64, bool, int) {
    return false;
  }
};

template <class R, class C, class Hot>
LT_FN void step_tiles(const StepArguments& a) {
  __shared__ typename Hot::Shared shared;
  __shared__ typename Hot::WarpTile of_warp[cuda_kernels::kWarps];
  if (is_void(a.replay)) return;
  Hot::Codec::fill(shared, a.tables);
  __syncthreads();
  const auto* const tables = static_cast<const typename C::Tables*>(a.tables);
  typename Hot::WarpTile& tile = of_warp[threadIdx.x / 32];
  for (i64 t = item_id() / 32; t < a.tiles; t += item_count() / 32) {
    const i64 at = find_item_by_warp(a.starts, a.count, t);
    const DeviceItem& item = a.items[at];
    if (is_stopped(item)) continue;
    typename R::Args args;
    __builtin_memcpy(&args, item.args, sizeof args);
    __syncwarp();  // all are done with the tile before
    if (threadIdx.x % 32 == 0) tile.fill(item, (t - a.starts[at]) * cuda_kernels::kTileBlocks, Hot::takes(item, args));
    __syncwarp();
    for (int b = 0; b < tile.blocks; b += 2) {
      const int half = static_cast<int>(threadIdx.x % 32 / kLanes);
      const int first = static_cast<int>(threadIdx.x % kLanes) * kLaneElements;
      // Without a block of its own a half sees the other's, and stores nothing.
      const bool there = b + half < tile.blocks;
      const int seen = there ? half : 0;
      const i64 element = tile.cursor[seen].element, left = tile.item->row_length - tile.cursor[seen].column;
      const int count = !there ? 0 : static_cast<int>(left < kBlock ? left : kBlock);
      // Rows of a hot item may still begin or end where no lane's elements do.
      const bool not_whole = ((element | count) & (kLaneElements - 1)) != 0;
      bool slow = __any_sync(kAllLanes, !tile.hot || not_whole);
      if (!slow) {
        const bool inside = first < count;
        slow = !Hot::step(tile, args, shared, element + (inside ? first : 0), tile.begin + b + seen, inside, seen);
      }
      if (slow)
        slow_blocks<R, C>(
            {tile.item, tile.item->first_block + tile.begin + b + seen, element, tile.cursor[seen].index, count},
            tables);
      __syncwarp();
      if (threadIdx.x % kLanes == 0) tile.advance(half);
      __syncwarp();
    }
  }
}
