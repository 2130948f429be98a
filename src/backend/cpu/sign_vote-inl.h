// Majorities and sums of bits, with counters in bit planes (portable/sign.h). A vector of each plane at a time is a
// "column". Few votes are counted in registers, column by column. Many votes are counted in tiles: 16 ballots at a
// time, over as many columns as have their planes in the first-level cache. (Manual prefetching was no faster.)
// sign_kernels.inc includes this file inside the target's namespace.

inline constexpr hn::ScalableTag<uint64_t> kW;
inline constexpr int kColumn = 8 * static_cast<int>(hn::MaxLanes(kW)), kColumnSigns = 8 * kColumn;
inline constexpr int64_t kCutBytes = kVoteCut / 8;
static_assert(kCutBytes % kColumn == 0);

// The bits of a column, as the portable W.
struct vw {
  using Vec = hn::Vec<decltype(kW)>;
  Vec v;
  vw() = default;
  HWY_INLINE explicit vw(Vec x) : v(x) {}
  HWY_INLINE vw(u64 x) : v(hn::Set(kW, x)) {}  // implicit, because portable kernels write W x = 0
};
LT_FN vw operator&(vw a, vw b) { return vw(hn::And(a.v, b.v)); }
LT_FN vw operator|(vw a, vw b) { return vw(hn::Or(a.v, b.v)); }
LT_FN vw operator^(vw a, vw b) { return vw(hn::Xor(a.v, b.v)); }
LT_FN vw operator~(vw a) { return vw(hn::Not(a.v)); }
LT_FN bool none(vw a) { return hn::AllTrue(kW, hn::Eq(a.v, hn::Zero(kW))); }
#if HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_AVX3_DL
LT_FN void carry_save_add(vw a, vw b, vw c, vw* sum, vw* carry) {
  *carry = vw(vw::Vec{_mm512_ternarylogic_epi64(a.v.raw, b.v.raw, c.v.raw, 0xe8)});
  *sum = vw(vw::Vec{_mm512_ternarylogic_epi64(a.v.raw, b.v.raw, c.v.raw, 0x96)});
}
#endif

LT_FN vw load_column(const void* p) { return vw(hn::LoadU(kW, static_cast<const uint64_t*>(p))); }
// Loads `bytes` bytes, padded with zeros.
LT_FN vw load_column(const void* p, int bytes) {
  if (bytes == kColumn) return load_column(p);
  alignas(64) u64 padded[kColumn / 8] = {};
  std::memcpy(padded, p, static_cast<size_t>(bytes));
  return load_column(padded);
}
LT_FN void store_column(vw x, void* p, int bytes) {
  if (bytes == kColumn) return hn::StoreU(x.v, kW, static_cast<uint64_t*>(p));
  alignas(64) u64 padded[kColumn / 8];
  hn::StoreU(x.v, kW, reinterpret_cast<uint64_t*>(padded));
  std::memcpy(p, padded, static_cast<size_t>(bytes));
}
// Returns a mask with ones for the first n signs.
LT_FN vw inside(int64_t n, bool big = false) {
  alignas(64) unsigned char mask[kColumn] = {};
  std::memset(mask, 0xff, static_cast<size_t>(n / 8));
  if (n % 8) mask[n / 8] = static_cast<unsigned char>(big ? 0xff00u >> (n % 8) : (1u << (n % 8)) - 1);
  return load_column(mask);
}
// Converts between the orders "little" and "big".
LT_FN vw mirrored(vw x) {
#if HWY_TARGET == HWY_SCALAR
  return mirrored(static_cast<u64>(hn::GetLane(x.v)));
#else
  return vw(hn::BitCast(kW, mirrored_bytes(hn::BitCast(kBytes, x.v))));
#endif
}
// Returns a mask with ones for the signs of every block whose bit is set.
LT_FN vw of_blocks(u64 blocks) {
  return vw(hn::VecFromMask(kW, hn::LoadMaskBits(kW, reinterpret_cast<const u8*>(&blocks))));
}

// The planes of a tile; the planes of a column are adjacent.
inline constexpr int kTileBytes = 32 * 1024;
inline constexpr int kTileVectorsHeld = kTileBytes / kColumn;
inline constexpr int kMostPlanes = 32;
static_assert(kTileVectorsHeld / kMostPlanes * kColumn >= kCutBytes);
struct Tile {
  alignas(64) vw plane[kTileVectorsHeld];
  static int64_t bytes(int planes) {
    const int64_t most = kTileVectorsHeld / std::max(planes, 4) * kColumn;
    return most / kCutBytes * kCutBytes;
  }
};

// Calls work(k) with a constant k that equals `number`, or returns false if there is none.
template <int... k, class Work>
LT_FN bool with_constant(int number, Work&& work) {
  return ((number == k && (work(std::integral_constant<int, k>()), true)) || ...);
}

inline constexpr int kGroup = 16;

// Collects up to kGroup ballots of voters from *v on whose weights have bit j.
LT_FN int next_group(const Voters& voters, int j, size_t* v, int64_t byte, const std::byte* (&rows)[kGroup]) {
  int held = 0;
  size_t at = *v;
  for (const size_t end = voters.ballots.size(); at < end && held < kGroup; ++at)
    if (voters[at] >> j & 1u) rows[held++] = voters.ballots[at] + byte;
  *v = at;
  return held;
}

// Adds up to eight rows, loaded by row(i). More than two count as eight: zeros cost less than ripple carries.
template <class Row>
LT_FN void count_some(vw* plane, int planes, int j, int n, Row&& row) {
  if (n > 2 && j + 3 <= planes) {
    vw rows[8];
    for (int i = 0; i < 8; ++i) rows[i] = i < n ? row(i) : vw(0);
    count_rows(plane, planes, j, rows);
    return;
  }
  for (int i = 0; i < n; ++i) count_row(plane, planes, j, row(i));
}

// Adds a whole group to a tile's counters from plane j on. If kPlanes is not 0, there are kPlanes planes, j is 0, and
// the work is done in registers.
template <int kPlanes>
void count_group(vw* plane, int planes, int j, const std::byte* const (&rows)[kGroup], int columns) {
  for (int c = 0; c < columns; ++c, plane += planes) {
    vw row[2][8];
    for (int i = 0; i < kGroup; ++i) row[i / 8][i % 8] = load_column(rows[i] + int64_t{c} * kColumn);
    if constexpr (kPlanes > 0) {
      vw held[kPlanes];
      for (int k = 0; k < kPlanes; ++k) held[k] = plane[k];
      for (const auto& eight : row) count_rows(held, kPlanes, 0, eight);
      for (int k = 0; k < kPlanes; ++k) plane[k] = held[k];
    } else {
      for (const auto& eight : row) count_rows(plane, planes, j, eight);
    }
  }
}

// Adds `held` rows, at most a whole group.
inline void count_group(vw* plane, int planes, int j, const std::byte* const (&rows)[kGroup], int held, int columns) {
  if (held == kGroup) {
    const auto count = [&](auto constant) { count_group<constant>(plane, planes, j, rows, columns); };
    if (j != 0 || !with_constant<6, 7, 8>(planes, count)) count(std::integral_constant<int, 0>());
    return;
  }
  for (int c = 0; c < columns; ++c, plane += planes)
    for (int i = 0; i < held; i += 8)
      count_some(plane, planes, j, std::min(8, held - i),
                 [&](int k) { return load_column(rows[i + k] + int64_t{c} * kColumn); });
}

// Sums the weights over `columns` whole columns from `byte` on, or over a single column of `bytes` bytes.
inline void count_tile(const Voters& voters, int64_t byte, int columns, int bytes, vw* plane) {
  const int planes = voters.planes;
  for (int i = 0; i < columns * planes; ++i) plane[i] = vw(0);
  for (int j = 0; j < planes; ++j) {
    if (!(voters.bits >> j & 1u)) continue;
    const std::byte* rows[kGroup];
    size_t v = 0;
    while (const int held = next_group(voters, j, &v, byte, rows)) {
      if (bytes == kColumn)
        count_group(plane, planes, j, rows, held, columns);
      else
        for (int i = 0; i < held; ++i) count_row(plane, planes, j, load_column(rows[i], bytes));
    }
  }
}

// Calls work(counters, first sign, number of signs) for the columns of [begin, end), which is at most a tile.
template <class Work>
LT_FN void for_each_counted(const Voters& voters, int64_t begin, int64_t end, Tile* tile, Work&& work) {
  const int64_t whole = begin + (end - begin) / kColumnSigns * kColumnSigns;
  count_tile(voters, begin / 8, static_cast<int>((whole - begin) / kColumnSigns), kColumn, tile->plane);
  const vw* plane = tile->plane;
  for (int64_t sign = begin; sign < whole; sign += kColumnSigns, plane += voters.planes)
    work(plane, sign, kColumnSigns);
  if (whole == end) return;
  const int rest = static_cast<int>(end - whole);
  count_tile(voters, whole / 8, 1, static_cast<int>(sign_bytes(rest)), tile->plane);
  work(tile->plane, whole, rest);
}

// The numbers of votes on the blocks of a tile, in planes with one word per kVoteCut signs.
struct BlockVotes {
  static constexpr int kWords = kTileBytes / 4 / static_cast<int>(kCutBytes);  // words of a tile's four planes
  u64 plane[kWords][kMostPlanes];
  u64 some[kWords];
};
inline void count_blocks(const VoteRun& run, int64_t byte, int64_t end, BlockVotes* votes) {
  const int64_t all = presence_bytes(run.item.count);
  for (int w = 0; byte + w * kCutBytes < end; ++w) {
    const int64_t at = (byte + w * kCutBytes) / kSignBlock;  // 8 bytes of ballots per presence bit
    const auto here = static_cast<size_t>(std::min<int64_t>(8, all - at));
    count_votes(votes->plane[w], run.voters.planes, run.voters, static_cast<int>(run.voters.ballots.size()),
                [&](int v) {
                  u64 word = 0;
                  std::memcpy(&word, run.item.presence[static_cast<size_t>(v)] + at, here);
                  return word;
                });
    u64 some = 0;
    for (int j = 0; j < run.voters.planes; ++j) some |= votes->plane[w][j];
    const int64_t blocks = (run.item.count + kSignBlock - 1) / kSignBlock - 8 * at;
    if (blocks < 64) some &= (u64{1} << blocks) - 1;
    votes->some[w] = some;
    std::memcpy(run.item.result_presence + at, &some, here);
  }
}

// Breaks ties by random bits. The key covers 2^32 groups of 32 elements.
struct HashedTies {
  u64 high = ~u64{0};
  RandomKey key{};
};
#if HWY_TARGET == HWY_SCALAR
LT_FN vw hashed(const VoteItem& item, u64 index, HashedTies*) { return tie_bits<u64>(item.seed, item.step, index); }
#else
LT_FN vw hashed(const VoteItem& item, u64 index, HashedTies* ties) {
  const u64 group = index / 32;
  const auto low = static_cast<u32>(group);
  if (low > ~u32{0} - kLanes) {  // reaches into the range of the next key
    alignas(64) u64 words[kColumn / 8];
    for (int i = 0; i < kColumn / 8; ++i) words[i] = tie_bits<u64>(item.seed, item.step, index + 64 * u64(i));
    return load_column(words);
  }
  if (ties->high != group >> 32) {
    ties->high = group >> 32;
    ties->key = tie_key(item.seed, item.step, ties->high);
  }
  const vu groups = iota(0u) + vu(low);  // iota(low) would be built in memory
  vu bits = random_bits(groups, ties->key);
  if (const int shift = static_cast<int>(index % 32))
    bits = (bits >> shift) | (random_bits(groups + vu(1u), ties->key) << (32 - shift));
  return vw(hn::BitCast(kW, bits.v));
}
#endif

// Turns counters into the result of signs [sign, sign + n), n <= kColumnSigns.
LT_FN void decide(const VoteRun& run, const vw* plane, int planes, const BlockVotes& votes, int64_t tile, int64_t sign,
                  int n, HashedTies* ties) {
  const VoteItem& item = run.item;
  const int64_t byte = sign / 8;
  const int bytes = static_cast<int>(sign_bytes(n));
  Majority<vw> of;
  if (item.presence.empty()) {
    of = majority(plane, planes, run.voters.sum);
  } else {
    const auto word = static_cast<size_t>((sign - tile) / kVoteCut);
    const int shift = static_cast<int>((sign - tile) % kVoteCut / kSignBlock);
    vw half[kMostPlanes];
    for (int j = 0; j < planes; ++j) half[j] = j + 1 < planes ? of_blocks(votes.plane[word][j + 1] >> shift) : vw(0);
    const vw odd = planes ? of_blocks(votes.plane[word][0] >> shift) : vw(0);
    of = majority(plane, planes, half, odd);
    const vw kept = of_blocks(votes.some[word] >> shift);
    of = {of.plus & kept, of.tie & kept};
  }
  if (n < kColumnSigns) {
    const vw mask = inside(n, item.big);
    of = {of.plus & mask, of.tie & mask};
  }
  vw result = of.plus;
  switch (item.ties) {
    case TieRule::kPlus:
      result = result | of.tie;
      break;
    case TieRule::kHash:
      if (!none(of.tie)) {
        const vw random = hashed(item, item.first_index + static_cast<u64>(sign), ties);
        result = result | (of.tie & (item.big ? mirrored(random) : random));
      }
      break;
    case TieRule::kPrevious:
      result = result | (of.tie & load_column(item.previous + byte, bytes));
      break;
    case TieRule::kZero:
      store_column(of.tie, item.zeros + byte, bytes);
      break;
    case TieRule::kMinus:
      break;
  }
  store_column(result, item.result + byte, bytes);
}

// Counts up to 2^kPlanes - 1 votes of weight 1 in registers.
template <int kPlanes>
void vote_in_registers(const VoteRun& run, const std::byte* const* rows, const BlockVotes& votes, int64_t tile,
                       int64_t end, HashedTies* ties) {
  const auto voters = static_cast<int>(run.voters.sum);
  for (int64_t sign = tile; sign < end; sign += kColumnSigns) {
    const int n = static_cast<int>(std::min<int64_t>(kColumnSigns, end - sign));
    const int64_t byte = sign / 8;
    vw plane[kPlanes];
    for (vw& p : plane) p = vw(0);
    if (n < kColumnSigns) {
      for (int v = 0; v < voters; ++v)
        count_row(plane, kPlanes, 0, load_column(rows[v] + byte, static_cast<int>(sign_bytes(n))));
    } else {
      for (int v = 0; v < voters; v += 8)
        count_some(plane, kPlanes, 0, std::min(8, voters - v), [&](int i) { return load_column(rows[v + i] + byte); });
    }
    decide(run, plane, kPlanes, votes, tile, sign, n, ties);
  }
}

inline constexpr int kRegisterPlanes = 5;

inline void vote_run(const VoteRun& run) {
  const Voters& voters = run.voters;
  const bool in_registers = voters.bits == 1 && voters.planes <= kRegisterPlanes;
  const std::byte* rows[1 << kRegisterPlanes];
  if (in_registers)
    for (size_t v = 0, held = 0; v < voters.ballots.size(); ++v)
      if (voters[v]) rows[held++] = voters.ballots[v];
  Tile tile;
  BlockVotes votes;
  HashedTies ties;
  const int64_t step = 8 * Tile::bytes(voters.planes);
  for (int64_t begin = run.begin; begin < run.end; begin += step) {
    const int64_t end = std::min(run.end, begin + step);
    if (!run.item.presence.empty()) count_blocks(run, begin / 8, sign_bytes(end), &votes);
    if (in_registers) {
      with_constant<1, 2, 3, 4, kRegisterPlanes>(
          voters.planes, [&](auto planes) { vote_in_registers<planes>(run, rows, votes, begin, end, &ties); });
      continue;
    }
    // A call per column would cost a tenth of the time.
    for_each_counted(
        voters, begin, end, &tile, [&](const vw* plane, int64_t sign, int n) __attribute__((always_inline)) {
          decide(run, plane, voters.planes, votes, begin, sign, n, &ties);
        });
  }
}

inline void count_run(const CountRun& run) {
  const int planes = run.voters.planes;
  Tile tile;
  const int64_t step = 8 * Tile::bytes(planes);
  for (int64_t begin = run.begin; begin < run.end; begin += step)
    for_each_counted(run.voters, begin, std::min(run.end, begin + step), &tile,
                     [&](const vw* plane, int64_t sign, int n) {
                       for (size_t j = 0; j < run.item.planes.size(); ++j) {
                         vw x = static_cast<int>(j) < planes ? plane[j] : vw(0);
                         if (n < kColumnSigns) x = x & inside(n);
                         store_column(x, run.item.planes[j] + sign / 8, static_cast<int>(sign_bytes(n)));
                       }
                     });
}
