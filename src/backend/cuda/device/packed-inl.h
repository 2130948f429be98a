// Converts the 16 elements of a lane between words as stored and floats. Included in the namespace of a .cu file after
// the portable kernels.

inline constexpr int kLaneElements = 16;

// A lane's position in a round.
struct LaneAt {
  int block;    // the block, counted from the tile's first
  int element;  // its first of 16 elements, counted from the tile's first
  u32 index;    // lower bits of the first element's index
  int half;     // the half of the warp, which has the block
  int count;    // number of its elements; with 0, it reads another lane's or none
  bool there;   // true if the half has its own block
};

// Selected at run time and uniform for a warp, because branches cost less than separate kernels for each pair of types,
// which a driver would have to load.
struct Form {
  int param, grad;  // element types
  int master;       // of the weights; 0 for none
  bool wide;        // lanes have 16 elements or none, and accesses of 16 bytes are aligned

  LT_METHOD bool operator==(const Form& o) const {
    return param == o.param && grad == o.grad && master == o.master && wide == o.wide;
  }
};
// The most common form has separate code without further branches.
LT_FN Form common_form() { return {1, 1, 0, true}; }

template <int kBytes>
using Unit = std::conditional_t<kBytes == 4, u32, std::conditional_t<kBytes == 2, u16, u8>>;

// Tells the compiler that memory is global. It cannot see this if pointers come from memory, and would use generic
// loads and stores, which might access the shared tables.
LT_FN void assume_global([[maybe_unused]] const void* memory) {
#ifdef __CUDA_ARCH__
  __builtin_assume(__isGlobal(memory));
#endif
}

// Load kWords words, 16, 8 or 4 bytes at a time.
template <int kWords>
LT_FN void load_whole(u32* word, const u8* from) {
  assume_global(from);
  if constexpr (kWords == 1) {
    word[0] = *reinterpret_cast<const u32*>(from);
  } else if constexpr (kWords == 2) {
    const uint2 two = *reinterpret_cast<const uint2*>(from);
    word[0] = two.x, word[1] = two.y;
  } else {
#pragma unroll
    for (int i = 0; i < kWords; i += 4) {
      const uint4 four = reinterpret_cast<const uint4*>(from)[i / 4];
      word[i] = four.x, word[i + 1] = four.y, word[i + 2] = four.z, word[i + 3] = four.w;
    }
  }
}
template <int kWords>
LT_FN void store_whole(const u32* word, u8* to) {
  assume_global(to);
  if constexpr (kWords == 1) {
    *reinterpret_cast<u32*>(to) = word[0];
  } else if constexpr (kWords == 2) {
    *reinterpret_cast<uint2*>(to) = make_uint2(word[0], word[1]);
  } else {
#pragma unroll
    for (int i = 0; i < kWords; i += 4)
      reinterpret_cast<uint4*>(to)[i / 4] = make_uint4(word[i], word[i + 1], word[i + 2], word[i + 3]);
  }
}

// A lane's kWords words, in units of kUnit bytes. Wide accesses take 16 or 8 bytes at a time, without cache hints: a
// lane's neighbour takes the other half of its sectors, and with hints lines had left the caches by then (float32 state
// on an H100: 0.90 of a copy's rate, 0.82 with hints).
//
// Otherwise the lane's bytes may begin anywhere and be fewer. The lane reads the aligned pieces that hold them, from
// the first on; settle() reads the last piece, which the neighbour has read by then, and shifts the bytes into place.
// The contents after the last byte are arbitrary. A lane whose pieces leave the tile reads unit by unit, because the
// memory beside the tile may not exist.
template <int kWords, int kUnit>
struct LaneBytes {
  static constexpr int kOfPiece = kWords < 4 ? kWords : 4, kPieces = kWords / kOfPiece;  // words of a piece, and pieces
  static constexpr int kPieceBytes = 4 * kOfPiece;
  const u8* piece;  // the first piece
  int before;       // bytes of the first piece before the lane's bytes
  int bytes;        // number of the lane's bytes
  bool apart;       // accesses go unit by unit

  // `first` is the offset in bytes from the tile's first byte, which is at `base`; the tile has `all` bytes.
  LT_FN LaneBytes find(const u8* base, int first, int units, int all) {
    LaneBytes of;
    of.before = units ? static_cast<int>(reinterpret_cast<u64>(base + first) % kPieceBytes) : 0;
    of.piece = base + first - of.before;
    of.bytes = units * kUnit;
    const int end = (of.before + of.bytes + kPieceBytes - 1) / kPieceBytes * kPieceBytes;
    of.apart = first < of.before || first - of.before + end > all;
    return of;
  }

  LT_METHOD void load(u32* word) const {
    if (apart) {
#pragma unroll
      for (int i = 0; i < kWords; ++i) {
        word[i] = 0;
#pragma unroll
        for (int u = 0; u < 4; u += kUnit)
          if (4 * i + u < bytes) word[i] |= static_cast<u32>(*unit_at(piece + before + 4 * i + u)) << 8 * u;
      }
      return;
    }
#pragma unroll
    for (int i = 0; i < kPieces; ++i) load_piece(word + i * kOfPiece, i);
  }
  LT_METHOD void settle(u32* word) const {
    u32 in[kWords + kOfPiece];
#pragma unroll
    for (int i = 0; i < kWords; ++i) in[i] = word[i];
#pragma unroll
    for (int i = 0; i < kOfPiece; ++i) in[kWords + i] = 0;
    if (!apart) load_piece(in + kWords, kPieces);
    const int by = apart ? 0 : before;
    // Move by whole words first.
    if constexpr (kOfPiece == 4) move_down<2>(in, by);
    move_down<1>(in, by);
#pragma unroll
    for (int i = 0; i < kWords; ++i) word[i] = kUnit == 4 ? in[i] : shifted(in[i], in[i + 1], by % 4 * 8);
  }

  // Called by all lanes. Each stores its pieces, from the piece with its first byte on, together with the last bytes of
  // the previous lane. In the first and last lane of a half, a piece may hold foreign bytes, so these lanes store their
  // part unit by unit.
  LT_METHOD void store(const u32* word) const {
    u32 out[kOfPiece + kWords + kOfPiece];  // begins one piece before the first
    const u32 lane = thread_again() % 32;
#pragma unroll
    for (int i = 0; i < kOfPiece; ++i) {
      out[i] = __shfl_sync(kAllLanes, word[kWords - kOfPiece + i], static_cast<int>((lane + 31) % 32));
      out[kOfPiece + kWords + i] = 0;
    }
    const int after = __shfl_down_sync(kAllLanes, bytes, 1);
    constexpr u32 kOfHalf = kBlock / kLaneElements;
    const bool is_first = lane % kOfHalf == 0, is_last = lane % kOfHalf == kOfHalf - 1 || after == 0;
#pragma unroll
    for (int i = 0; i < kWords; ++i) out[kOfPiece + i] = word[i];
    if (bytes == 0) return;
    u8* const to = const_cast<u8*>(piece);
    if (is_first && is_last) {
#pragma unroll
      for (int i = 0; i < kWords; ++i)
#pragma unroll
        for (int u = 0; u < 4; u += kUnit)
          if (4 * i + u < bytes) *unit_at(to + before + 4 * i + u) = static_cast<Unit<kUnit>>(word[i] >> 8 * u);
      return;
    }
    move_up<1>(out, before);
    if constexpr (kOfPiece == 4) move_up<2>(out, before);
#pragma unroll
    for (int i = 2 * kOfPiece + kWords - 1; i >= kOfPiece && kUnit < 4; --i)
      out[i] = shifted(out[i - 1], out[i], 32 - before % 4 * 8);
    const int begin = is_first ? before : 0, end = is_last ? before + bytes : 4 * kWords;
    u32 rest[kOfPiece];  // the incomplete piece
    const int at = is_first ? 0 : end / kPieceBytes;
#pragma unroll
    for (int i = 0; i <= kPieces; ++i) {
      if (i * kPieceBytes >= begin && (i + 1) * kPieceBytes <= end)
        store_whole<kOfPiece>(out + (i + 1) * kOfPiece, to + i * kPieceBytes);
#pragma unroll
      for (int j = 0; j < kOfPiece; ++j) rest[j] = i == 0 || i == at ? out[(i + 1) * kOfPiece + j] : rest[j];
    }
    const int from = begin - at * kPieceBytes, until = end - at * kPieceBytes;
    if (from <= 0 && (until <= 0 || until >= kPieceBytes)) return;
#pragma unroll
    for (int i = 0; i < kPieceBytes; i += kUnit)
      if (i >= from && i < until)
        *unit_at(to + at * kPieceBytes + i) = static_cast<Unit<kUnit>>(rest[i / 4] >> i % 4 * 8);
  }

 private:
  LT_METHOD static const Unit<kUnit>* unit_at(const u8* at) { return reinterpret_cast<const Unit<kUnit>*>(at); }
  LT_METHOD static Unit<kUnit>* unit_at(u8* at) { return reinterpret_cast<Unit<kUnit>*>(at); }
  // Moves by kStep words if the number of words in `by` bytes has this bit.
  template <int kStep>
  LT_METHOD static void move_down(u32 (&in)[kWords + kOfPiece], int by) {
    const bool here = (by / 4 & kStep) != 0;
#pragma unroll
    for (int i = 0; i < kWords + kStep; ++i) in[i] = here ? in[i + kStep] : in[i];
  }
  template <int kStep>
  LT_METHOD static void move_up(u32 (&out)[kWords + 2 * kOfPiece], int by) {
    const bool here = (by / 4 & kStep) != 0;
#pragma unroll
    for (int i = kWords + 2 * kOfPiece - 1; i >= kStep; --i) out[i] = here ? out[i - kStep] : out[i];
  }
  // Returns four bytes of two words, from bit `by` on.
  LT_METHOD static u32 shifted(u32 low, u32 high, int by) { return static_cast<u32>((u64{high} << 32 | low) >> by); }
  LT_METHOD void load_piece(u32* word, int i) const {
    if (i * kPieceBytes < before + bytes)
      load_whole<kOfPiece>(word, piece + i * kPieceBytes);
    else
#pragma unroll
      for (int j = 0; j < kOfPiece; ++j) word[j] = 0;
  }
};

template <int kWords, int kUnit>
LT_FN void load_lane(u32* word, const u8* base, int first, bool wide, int units, int all) {
  if (wide)
    load_whole<kWords>(word, base + first);
  else
    LaneBytes<kWords, kUnit>::find(base, first, units, all).load(word);
}
// Puts the words that load_lane loaded with the same arguments into place.
template <int kWords, int kUnit>
LT_FN void settle_lane(u32* word, const u8* base, int first, bool wide, int units, int all) {
  if (!wide) LaneBytes<kWords, kUnit>::find(base, first, units, all).settle(word);
}
template <int kWords, int kUnit>
LT_FN void store_lane(const u32* word, u8* base, int first, bool wide, int units) {
  if (!wide)
    LaneBytes<kWords, kUnit>::find(base, first, units, 0).store(word);
  else if (units)
    store_whole<kWords>(word, base + first);
}

// Elements of a type packed in words.
template <class T>
struct Packed;

template <>
struct Packed<float> {
  LT_FN float get(const u32* word, int i) { return as_float(word[i]); }
  LT_FN void set_two(u32* word, int i, float low, float high) { word[i] = bits(low), word[i + 1] = bits(high); }
};

template <>
struct Packed<bf16> {
  LT_FN float get(const u32* word, int i) { return as_float(i % 2 ? word[i / 2] & 0xffff0000u : word[i / 2] << 16); }
  LT_FN void set_two(u32* word, int i, float low, float high) { word[i / 2] = bf16_pair(low, high); }
};

template <>
struct Packed<f16> {
  LT_FN float get(const u32* word, int i) { return f16_decode(half(word, i)); }
  LT_FN void set_two(u32* word, int i, float low, float high) { word[i / 2] = f16_pair(low, high); }
  LT_FN u32 half(const u32* word, int i) { return i % 2 ? word[i / 2] >> 16 : word[i / 2] & 0xffffu; }
};

// Room for elements of any type; not all types fill it. (The stand-in's compiler would warn about uninitialized words.)
struct ElementWords {
#ifdef __CUDA_ARCH__
  u32 word[kLaneElements];
#else
  u32 word[kLaneElements] = {};
#endif
};

// `all` is the number of elements in the tile.
LT_FN void load_elements(u32 (&word)[kLaneElements], const u8* base, int dtype, bool wide, const LaneAt& at, int all) {
  if (dtype == 0)
    load_lane<kLaneElements, 4>(word, base, 4 * at.element, wide, at.count, 4 * all);
  else
    load_lane<kLaneElements / 2, 2>(word, base, 2 * at.element, wide, at.count, 2 * all);
}
LT_FN void settle_elements(u32 (&word)[kLaneElements], const u8* base, int dtype, bool wide, const LaneAt& at,
                           int all) {
  if (dtype == 0)
    settle_lane<kLaneElements, 4>(word, base, 4 * at.element, wide, at.count, 4 * all);
  else
    settle_lane<kLaneElements / 2, 2>(word, base, 2 * at.element, wide, at.count, 2 * all);
}
LT_FN void store_elements(const u32 (&word)[kLaneElements], u8* base, int dtype, bool wide, const LaneAt& at) {
  if (dtype == 0)
    store_lane<kLaneElements, 4>(word, base, 4 * at.element, wide, at.count);
  else
    store_lane<kLaneElements / 2, 2>(word, base, 2 * at.element, wide, at.count);
}

template <class T>
LT_FN void unpack(float (&x)[kLaneElements], const u32 (&word)[kLaneElements]) {
#pragma unroll
  for (int i = 0; i < kLaneElements; ++i) x[i] = Packed<T>::get(word, i);
}
template <class T>
LT_FN void pack(u32 (&word)[kLaneElements], const float (&x)[kLaneElements]) {
#pragma unroll
  for (int i = 0; i < kLaneElements; i += 2) Packed<T>::set_two(word, i, x[i], x[i + 1]);
}
LT_FN void unpack(float (&x)[kLaneElements], const u32 (&word)[kLaneElements], int dtype) {
  if (dtype == 1)
    unpack<bf16>(x, word);
  else if (dtype == 0)
    unpack<float>(x, word);
  else
    unpack<f16>(x, word);
}
LT_FN void pack(u32 (&word)[kLaneElements], const float (&x)[kLaneElements], int dtype) {
  if (dtype == 1)
    pack<bf16>(word, x);
  else if (dtype == 0)
    pack<float>(word, x);
  else
    pack<f16>(word, x);
}

// Computes random_16 of elements 4 * number to 4 * number + 3, two per word, the first in the lower half.
LT_FN void random_four(u32 number, RandomKey key, u32 (&random)[2]) {
  const u32 half = random_half(number, key), hash = random_rest(half, key);
  random[0] = __byte_perm(half, hash, 0x5342), random[1] = __byte_perm(half, hash, 0x7362);
}

// The random bits of a lane's elements, whose first index is a multiple of 4.
struct LaneRandom {
  u32 first;
  RandomKey key;

  // Computes the random bits of four elements from number i on.
  LT_METHOD void four(int i, u32 (&random)[2]) const { random_four(first / 4 + static_cast<u32>(i) / 4, key, random); }
};
