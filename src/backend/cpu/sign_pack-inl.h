// Packs values to bits and unpacks them, in words of 64 signs, which are blocks of presence. Works on integers, because
// floating point may flush denormals to zero. sign_kernels.inc includes this file inside the target's namespace.

inline constexpr int kWordSigns = 64;
static_assert(kWordSigns == kSignBlock);

// Splits signs [first, first + count) into parts of words (n < 64) and runs of whole words (n a multiple of 64, within
// one block of scales), and calls run(at, n) with the first sign's index.
template <class Fn>
HWY_INLINE void for_each_sign_run(int64_t first, int64_t count, Fn&& run) {
  const auto begin = static_cast<u64>(first), end = static_cast<u64>(first + count);
  for (u64 at = begin, n; at < end; at += n) {
    n = std::min<u64>(end - at, at % kWordSigns ? kWordSigns - at % kWordSigns : kFeedbackBlock - at % kFeedbackBlock);
    if (n > kWordSigns) n -= n % kWordSigns;
    run(at, n);
  }
}

// Returns n signs from index `at` on, the first in the lowest bit.
LT_FN u64 load_signs(const std::byte* bits, u64 at, u64 n) {
  u64 word = 0;
  std::memcpy(&word, bits + at / 8, (at % 8 + n + 7) / 8);
  return word >> (at % 8);
}
LT_FN u64 load_word(const std::byte* bits) {
  u64 word;
  std::memcpy(&word, bits, sizeof word);
  return word;
}
#if HWY_TARGET != HWY_SCALAR
// `mirrored` for vectors.
inline constexpr hn::ScalableTag<uint8_t> kBytes;
HWY_INLINE hn::Vec<decltype(kBytes)> mirrored_bytes(hn::Vec<decltype(kBytes)> x) {
  alignas(16) static constexpr uint8_t kHalves[16] = {0, 8, 4, 12, 2, 10, 6, 14, 1, 9, 5, 13, 3, 11, 7, 15};
  const auto low = hn::LoadDup128(kBytes, kHalves), high = hn::ShiftLeft<4>(low), mask = hn::Set(kBytes, uint8_t{15});
  return hn::Or(hn::TableLookupBytes(high, hn::And(x, mask)), hn::TableLookupBytes(low, hn::ShiftRight<4>(x)));
}
#endif
// Mirrors whole words. `to` may equal `from`.
HWY_INLINE void mirror(const std::byte* from, std::byte* to, u64 bytes) {
  u64 i = 0;
#if HWY_TARGET != HWY_SCALAR
  for (; i + hn::MaxLanes(kBytes) <= bytes; i += hn::MaxLanes(kBytes))
    hn::StoreU(mirrored_bytes(hn::LoadU(kBytes, reinterpret_cast<const uint8_t*>(from + i))), kBytes,
               reinterpret_cast<uint8_t*>(to + i));
#endif
  for (; i < bytes; i += sizeof(u64)) {
    u64 word;
    std::memcpy(&word, from + i, sizeof word);
    word = mirrored(word);
    std::memcpy(to + i, &word, sizeof word);
  }
}
// Stores n signs; the rest of `word` is zeros. Keeps earlier signs in the first byte, clears later ones in the last.
LT_FN void store_signs(u64 word, std::byte* bits, u64 at, u64 n) {
  const u64 shift = at % 8, before = std::to_integer<u64>(bits[at / 8]) & ((u64{1} << shift) - 1);
  word = word << shift | before;
  std::memcpy(bits + at / 8, &word, (shift + n + 7) / 8);
}

// Elements as signed integers, which compare fastest.
template <class T>
struct Elements {
  using Raw = typename SignBits<T>::Raw;
  using Lane = std::make_signed_t<Raw>;
  static constexpr hn::ScalableTag<Lane> d{};
  using Vec = hn::Vec<decltype(d)>;
  static constexpr int kCount = static_cast<int>(hn::MaxLanes(d));
  static Vec set(Raw x) { return hn::Set(d, static_cast<Lane>(x)); }
};

// is_plus(x, zero_is_plus) for vectors: true if `low` <= x <= infinity, with `low` moved to the least signed number, or
// if x is `also`. For the sign bit: 0 <= x <= the largest signed number.
template <class T>
struct PlusTest {
  using E = Elements<T>;
  using B = SignBits<T>;
  PlusTest(bool zero_is_plus, bool sign_bit)
      : move(E::set(static_cast<typename B::Raw>(B::kMinusZero - !(zero_is_plus || sign_bit)))),
        end(E::set(static_cast<typename B::Raw>(sign_bit ? 0 : B::kMinusZero + B::kInfinity - !zero_is_plus + 1))),
        also(E::set(static_cast<typename B::Raw>(sign_bit       ? 0
                                                 : zero_is_plus ? B::kMinusZero
                                                                : 1))) {}
  HWY_INLINE auto operator()(typename E::Vec x) const { return hn::Or(hn::Lt(hn::Add(x, move), end), hn::Eq(x, also)); }
  typename E::Vec move, end, also;
};

template <class T, bool kPresence, bool kFinite>
void pack_as(const PackRun& run) {
  using E = Elements<T>;
  using Lane = typename E::Lane;
  const SignItem& item = run.item;
  const PlusTest<T> plus(item.zero_is_plus, run.sign_bit);
  const bool big = item.big;
  const auto magnitude = E::set(static_cast<typename E::Raw>(~SignBits<T>::kMinusZero));
  auto largest = hn::Zero(E::d);
  bool some = false;  // the last word has a nonzero value
  const auto pack_word = [&](const Lane* from) {
    u64 word = 0;
    auto any = hn::Zero(E::d);
    for (int k = 0; k < kWordSigns; k += E::kCount) {
      const auto x = hn::LoadU(E::d, from + k);
      u64 part = 0;
      hn::StoreMaskBits(E::d, plus(x), reinterpret_cast<u8*>(&part));
      word |= part << k;
      if constexpr (kPresence) any = hn::Or(any, x);
      if constexpr (kFinite) largest = hn::Max(largest, hn::And(x, magnitude));
    }
    if constexpr (kPresence) some = !hn::AllTrue(E::d, hn::Eq(hn::And(any, magnitude), hn::Zero(E::d)));
    return word;
  };
  const auto* values = static_cast<const Lane*>(item.values);
  std::byte *const bits = item.bits, *const presence = item.presence;
  const auto first = static_cast<u64>(item.first), end = first + static_cast<u64>(item.count);
  u64 present = 0;
  const auto note = [&](u64 at, u64 n) {
    const u64 block = at / kWordSigns;
    present |= u64{some} << (block % 8);
    if (block % 8 < 7 && at + n < end) return;
    presence[block / 8] = static_cast<std::byte>(present);
    present = 0;
  };
  for_each_sign_run(item.first, item.count, [&](u64 at, u64 n) {
    const Lane* from = values + (at - first);
    if (n < kWordSigns) {
      alignas(64) Lane padded[kWordSigns] = {};
      std::memcpy(padded, from, n * sizeof(Lane));
      const u64 word = pack_word(padded) & ((u64{1} << n) - 1);
      store_signs(big ? mirrored(word) : word, bits, at, n);
      if constexpr (kPresence) note(at, n);
      return;
    }
    for (const u64 stop = at + n; at < stop; at += kWordSigns, from += kWordSigns) {
      u64 word = pack_word(from);
      if (big) word = mirrored(word);
      std::memcpy(bits + at / 8, &word, sizeof word);
      if constexpr (kPresence) note(at, kWordSigns);
    }
  });
  if constexpr (kFinite) {
    const auto most = E::set(static_cast<typename E::Raw>(SignBits<T>::kInfinity - 1));
    if (!hn::AllFalse(E::d, hn::Gt(largest, most))) *item.nonfinite = 1;
  }
}

template <class T>
void pack_run(const PackRun& run) {
  if (run.item.presence)
    run.item.nonfinite ? pack_as<T, true, true>(run) : pack_as<T, true, false>(run);
  else
    run.item.nonfinite ? pack_as<T, false, true>(run) : pack_as<T, false, false>(run);
}

// Stores a word's values; kStream bypasses the cache and requires alignment.
template <class T, bool kStream, bool kZeros>
HWY_INLINE void expand(u64 word, u64 zeros, typename Elements<T>::Vec plus, typename Elements<T>::Vec minus,
                       typename Elements<T>::Lane* values) {
  using E = Elements<T>;
  for (int k = 0; k < kWordSigns; k += E::kCount) {
    const u64 part = word >> k;
    auto x = hn::IfThenElse(hn::LoadMaskBits(E::d, reinterpret_cast<const u8*>(&part)), plus, minus);
    if constexpr (kZeros) {
      const u64 zero = zeros >> k;
      x = hn::IfThenZeroElse(hn::LoadMaskBits(E::d, reinterpret_cast<const u8*>(&zero)), x);
    }
    if constexpr (kStream)
      hn::Stream(x, E::d, values + k);
    else
      hn::StoreU(x, E::d, values + k);
  }
}

// Returns vectors with the float as an element in every lane.
template <class T>
HWY_INLINE typename Elements<T>::Vec as_elements(float x) {
  T stored[kLanes];
  store(vf(x), stored);
  typename Elements<T>::Raw raw;
  std::memcpy(&raw, stored, sizeof raw);
  return Elements<T>::set(raw);
}

template <class T, bool kStream>
void unpack_as(const UnpackRun& run) {
  using E = Elements<T>;
  using Lane = typename E::Lane;
  const SignItem& item = run.item;
  const bool big = item.big;
  const auto in_order = [big](u64 word) { return big ? mirrored(word) : word; };
  auto plus = E::set(SignBits<T>::kOne), minus = E::set(SignBits<T>::kOne | SignBits<T>::kMinusZero);
  auto* values = static_cast<Lane*>(item.values);
  const std::byte *const bits = item.bits, *const zeros = item.zeros, *const presence = item.presence;
  const auto first = static_cast<u64>(item.first);
  const auto absent = [&](u64 at) {
    const u64 block = at / kWordSigns;
    return presence && !(std::to_integer<u32>(presence[block / 8]) >> (block % 8) & 1u) ? ~u64{0} : u64{0};
  };
  for_each_sign_run(item.first, item.count, [&](u64 at, u64 n) {
    if (item.scales) {
      const float scale = bf16_decode(u32{item.scales[at / kFeedbackBlock]});
      plus = as_elements<T>(scale), minus = as_elements<T>(-scale);
    }
    Lane* to = values + (at - first);
    if (n < kWordSigns) {
      alignas(64) Lane padded[kWordSigns];
      const u64 zero = absent(at) | (zeros ? in_order(load_signs(zeros, at, n)) : 0);
      expand<T, false, true>(in_order(load_signs(bits, at, n)), zero, plus, minus, padded);
      std::memcpy(to, padded, n * sizeof(Lane));
      return;
    }
    const u64 stop = at + n;
    alignas(64) std::byte turned[kFeedbackBlock / 8];
    const std::byte* from = bits + at / 8;
    if (big) {
      mirror(from, turned, n / 8);
      from = turned;
    }
    if (zeros || presence) {
      for (; at < stop; at += kWordSigns, to += kWordSigns, from += sizeof(u64))
        expand<T, kStream, true>(load_word(from), absent(at) | (zeros ? in_order(load_word(zeros + at / 8)) : 0), plus,
                                 minus, to);
    } else {
      for (; at < stop; at += kWordSigns, to += kWordSigns, from += sizeof(u64))
        expand<T, kStream, false>(load_word(from), 0, plus, minus, to);
    }
  });
  if constexpr (kStream) hwy::FlushStream();
}

template <class T>
void unpack_run(const UnpackRun& run) {
  // The address of the first whole word's values; all other words have the same alignment.
  const auto first_word = reinterpret_cast<uintptr_t>(run.item.values) +
                          static_cast<uintptr_t>(-run.item.first & (kWordSigns - 1)) * sizeof(T);
  run.stream&& first_word % HWY_MAX_BYTES == 0 ? unpack_as<T, true>(run) : unpack_as<T, false>(run);
}
