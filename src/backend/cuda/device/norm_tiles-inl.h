// The driver of norms: a warp takes a tile of kTileBlocks blocks of one item, two blocks at a time, with 16 lanes each
// and 16 elements per lane in registers, like a step (step_tiles-inl.h). Sums within blocks have the order of
// sum_lanes; blocks' sums are added exactly, as integers, so the order of warps does not matter. Strided memory, and
// blocks with an operand out of range (real-inl.h), are summed one block at a time (kernels/norms-inl.h). Included in
// the namespace of a .cu file after norms-inl.h and step_tiles-inl.h.

// The tables that decode states.
template <class C>
struct ReadTables {
  using Shared = typename LaneCodec<C>::Shared;
  LT_FN void fill(Shared& shared, const void* tables) { LaneCodec<C>::fill(shared, tables); }
};
template <>
struct ReadTables<Dynamic8> {
  using Shared = LaneCodec<Dynamic8>::Values;
  LT_FN void fill(Shared& shared, const void* tables) { LaneCodec<Dynamic8>::fill_values(shared, tables); }
};

// A block's 256 values on the way from the lanes that computed them to the lanes that add them. There is a row for each
// of the 32 lanes of the sum, spaced so that neither access has bank conflicts.
inline constexpr int kTurnedRow = kNormLanes + 4;
using Turned = uint4[kNormRounds * kTurnedRow / 4];

// Returns the sum of the squares of a block's values times `inverse` to all lanes of its half. `x` has a lane's 16
// values.
LT_FN float sum_of_half(const float (&x)[kLaneElements], float inverse, Turned& turned) {
  static_assert(2 * kLaneElements == kNormLanes && kLaneElements * kLanes == kBlock);
  const int lane = static_cast<int>(threadIdx.x % kLanes);
  uint4* const to = turned + (lane / 2 * kTurnedRow + lane % 2 * kLaneElements) / 4;
#pragma unroll
  for (int i = 0; i < kLaneElements / 4; ++i)
    to[i] = make_uint4(bits(x[4 * i] * inverse), bits(x[4 * i + 1] * inverse), bits(x[4 * i + 2] * inverse),
                       bits(x[4 * i + 3] * inverse));
  __syncwarp();
  // Lane l adds for lanes 2 l and 2 l + 1 of the sum.
  float even = 0.f, odd = 0.f;
#pragma unroll
  for (int round = 0; round < kNormRounds; ++round) {
    const uint2 two = reinterpret_cast<const uint2*>(turned)[round * kTurnedRow / 2 + lane];
    even = even + as_float(two.x) * as_float(two.x);
    odd = odd + as_float(two.y) * as_float(two.y);
  }
  __syncwarp();  // all lanes have read `turned`
#pragma unroll
  for (u32 distance = kLanes / 2; distance > 0; distance /= 2) {
    even = even + from_lane_xor(even, distance);
    odd = odd + from_lane_xor(odd, distance);
  }
  return even + odd;
}

// One lane's part of an exact sum, on its way to memory: three 32-bit limbs with carries, from limb `base` on.
struct LimbWindow {
  NormSums* sums = nullptr;
  int term = 0;
  int base = -3;
  u64 word[3] = {0, 0, 0};

  // Adds x 2^(2 (exponent - 127)), x >= 0, as ExactSum::add does.
  LT_METHOD void add(float x, u32 exponent) {
    const u32 field = bits(x) >> 23;
    if (field == 0xff) return add_to(&sums->others[term], 1);
    const u32 mantissa = (bits(x) & 0x7fffffu) | (field ? 0x800000u : 0u);
    const int place = static_cast<int>((field ? field : 1) + 2 * exponent) - 2 * 127 - 150 - kSumLowest;
    const int limb = place / 32;
    const u64 shifted = static_cast<u64>(mantissa) << place % 32, low = shifted & 0xffffffffu, high = shifted >> 32;
    if (static_cast<u32>(limb - base) > 1u) {
      flush();
      base = limb - 1;  // for the smallest term, place is 4 and base -1, so its first limb stays 0
    }
    const bool is_first = limb == base;
    word[0] += is_first ? low : 0;
    word[1] += is_first ? high : low;
    word[2] += is_first ? 0 : high;
  }
  LT_METHOD void flush() {
#pragma unroll
    for (int i = 0; i < 3; ++i) {
      if (word[i]) add_to(&sums->limbs[term][base + i], word[i]);
      word[i] = 0;
    }
  }

 private:
  LT_METHOD static void add_to(int64_t* to, u64 x) { atomicAdd(reinterpret_cast<u64*>(to), x); }
};

template <class R, class C>
struct LaneNorms {
  using Lanes = LaneBlocks<R, C, kNormStates<R>>;
  using Tables = ReadTables<C>;
  static constexpr int K = Lanes::K;

  // Computes the terms of a lane's elements, 0 for missing elements. Returns false to the whole warp if an operand is
  // out of range; the terms may then be wrong.
  template <bool kIsCommon>
  LT_FN bool terms(const Tile& tile, const typename R::Args& args, const typename Tables::Shared& shared,
                   const Form& form, const LaneAt& at, typename Lanes::Words& words, float (&x)[2][kLaneElements]) {
    float p[kLaneElements], g[kLaneElements];
    words.weights.get(tile, form, at, p);
    unpack(g, words.grad.word, form.grad);
    if (!kIsCommon && tile.grad_scale != 1.f) {
#pragma unroll
      for (int e = 0; e < kLaneElements; ++e) g[e] = g[e] * tile.grad_scale;
    }
    u32 most[K ? K : 1] = {}, least[K ? K : 1];
    for (u32& u : least) u = ~0u;
#pragma unroll
    for (int e = 0; e < kLaneElements; ++e) {
      using F = Float<R>;
      F s[K ? K : 1], of[2];
      each<K>([&](auto k) {
        const float state = words.codes.of(k).get(shared, e);
        s[k] = C::kScaled ? state * words.scale[k][0] : state;
      });
      R::template terms<F>(p[e], g[e], s, args, of);
      x[0][e] = value_of(of[0]), x[1][e] = value_of(of[1]);
      if constexpr (kDivides<R>) {
        each<K>([&](auto k) {
          const u32 magnitude = bits(abs(value_of(s[k]))), above_zero = magnitude - 1;  // 0 is in range
          most[k] = magnitude > most[k] ? magnitude : most[k];
          least[k] = above_zero < least[k] ? above_zero : least[k];
        });
      }
    }
    bool out = false;
    if constexpr (kDivides<R>) {
      each<K>([&](auto k) {
        using State = typename Lanes::template State<k>;
        out = out || most[k] > bits(State::kMost) || least[k] < bits(State::kLeast) - 1;
      });
    }
    if (__any_sync(kAllLanes, at.count != kLaneElements)) {
      out = out && at.count > 0;
#pragma unroll
      for (int e = 0; e < kLaneElements; ++e) {
        const bool has = e < at.count;
        x[0][e] = has ? x[0][e] : 0.f, x[1][e] = has ? x[1][e] : 0.f;
      }
    }
    return !kDivides<R> || !__any_sync(kAllLanes, out);
  }

  // Adds the blocks of the warp's halves. Lane 0 of a half has the first term's sum in its window, and lane 1 has the
  // second term's.
  LT_FN void add(const LaneAt& at, const float (&x)[2][kLaneElements], Turned& turned, LimbWindow& window) {
    float sum[2];
    u32 exponent[2];
#pragma unroll
    for (int t = 0; t < 2; ++t) {
      float most = 0.f;
#pragma unroll
      for (int e = 0; e < kLaneElements; ++e) most = fmaxf(abs(x[t][e]), most);
      exponent[t] = norm_exponent(max_of_lanes(bits(most), kLanes));
      sum[t] = sum_of_half(x[t], norm_inverse(exponent[t]), turned);
    }
    const int lane = static_cast<int>(threadIdx.x % kLanes);
    if (lane < 2 && at.there) window.add(lane ? sum[1] : sum[0], lane ? exponent[1] : exponent[0]);
  }
};

// Returns the first term's sum to even lanes and the second's to odd lanes, in the lower half, with the unit in the
// upper half, as bits. Not inlined, because the code would be repeated for each path that ends here.
template <class R, class C>
static __device__ __noinline__ u64 slow_norms(const DeviceItem* item, i64 block, const void* tables) {
  const u32 lane = threadIdx.x % 32;
  const BlockNorms norms = norm_block<R, C>(*item, block, static_cast<const typename C::Tables*>(tables), lane);
  const float sum = lane % 2 ? norms.sum[1] : norms.sum[0], unit = lane % 2 ? norms.unit[1] : norms.unit[0];
  return static_cast<u64>(bits(unit)) << 32 | bits(sum);
}

template <class R, class C>
LT_FN void norm_tiles(const StepArguments& a) {
  using Norms = LaneNorms<R, C>;
  using Lanes = typename Norms::Lanes;
  __shared__ typename Norms::Tables::Shared shared;
  __shared__ Tile of_warp[cuda_kernels::kWarps];
  __shared__ Turned of_halves[cuda_kernels::kThreads / kLanes];
  if (is_void(a.replay)) return;
  Norms::Tables::fill(shared, a.tables);
  __syncthreads();
  const u32 lane = threadIdx.x % 32;
  Tile& tile = of_warp[threadIdx.x / 32];
  Turned& turned = of_halves[threadIdx.x / kLanes];
  LimbWindow window;
  window.term = static_cast<int>(lane % 2);
  for (i64 t = item_id() / 32; t < a.tiles; t += item_count() / 32) {
    const i64 of = find_item_by_warp(a.starts, a.count, t);
    const DeviceItem& item = a.items[of];
    if (!a.norms[of].adds || is_stopped(item)) continue;
    if (window.sums != a.norms[of].sums) {
      window.flush();
      window.sums = a.norms[of].sums;
    }
    typename R::Args args;
    __builtin_memcpy(&args, item.args, sizeof args);
    const bool is_hot = item.param.dim_count == 0 && item.grad.dim_count == 0 && Lanes::has_range(args);
    __syncwarp();  // all lanes are done with the previous tile
    if (lane == 0) tile.fill(item, (t - a.starts[of]) * cuda_kernels::kTileBlocks, is_hot, Lanes::formats().of);
    __syncwarp();
    const auto one_by_one = [&](int first) {
#pragma unroll 1
      for (int b = first; b < first + 2 && b < tile.blocks; ++b) {
        const u64 found = slow_norms<R, C>(&item, tile.begin + b, a.tables);
        if (lane < 2) window.add(as_float(static_cast<u32>(found)), static_cast<u32>(found >> 32) >> 23);
      }
    };
    float x[2][kLaneElements];
    typename Lanes::Words words;
    if (tile.plain) {
      // The next round's words are loaded while this round's values are added.
      LaneAt at = tile.place_straight(0);
      Lanes::load(tile, common_form(), at, words);
      for (int b = 0; b < tile.blocks; b += 2) {
        const bool is_done = Norms::template terms<true>(tile, args, shared, common_form(), at, words, x);
        const LaneAt of_these = at;
        if (b + 2 < tile.blocks) {
          at = tile.place_straight(b + 2);
          Lanes::load(tile, common_form(), at, words);
        }
        if (is_done)
          Norms::add(of_these, x, turned, window);
        else
          one_by_one(b);
      }
      continue;
    }
    for (int b = 0; b < tile.blocks; b += 2) {
      if (!is_hot) {
        one_by_one(b);
        continue;
      }
      const LaneAt at = tile.place(b);
      Form form = tile.form;
      // Rows may begin or end inside a lane's elements.
      const bool not_whole = ((at.element | at.count) & (kLaneElements - 1)) != 0;
      form.wide = !__any_sync(kAllLanes, !form.wide || not_whole);
      Lanes::load(tile, form, at, words);
      if (!form.wide) Lanes::settle(tile, form, at, words);
      if (Norms::template terms<false>(tile, args, shared, form, at, words, x))
        Norms::add(at, x, turned, window);
      else
        one_by_one(b);
      tile.advance();
    }
  }
  window.flush();
}
