// Values to bits and back, a word of 64 signs at a time: 64 values are 4 KiB or less of registers' worth, and a word is
// a block of presence. On integers. Included inside the target's namespace by sign_kernels.inc.

inline constexpr int kWordSigns = 64;
static_assert(kWordSigns == kSignBlock);

// The words that signs [first, first + count) lie in, whole or in part: word(at, n), at the first sign's number.
template <class Fn>
HWY_INLINE void for_each_sign_word(int64_t first, int64_t count, Fn&& word) {
  for (int64_t at = first, end = first + count; at < end;) {
    const int64_t n = std::min(end - at, kWordSigns - at % kWordSigns);
    word(at, static_cast<int>(n));
    at += n;
  }
}

// Bytes of n signs from number `at`, their first bit the lowest.
LT_FN u64 load_signs(const std::byte* bits, int64_t at, int n) {
  u64 word = 0;
  std::memcpy(&word, bits + at / 8, n == kWordSigns ? 8 : static_cast<size_t>(sign_bytes(at % 8 + n)));
  return word >> (at % 8);
}
// Keeps those before them in their first byte, and clears those behind in their last.
LT_FN void store_signs(u64 word, std::byte* bits, int64_t at, int n) {
  if (n == kWordSigns) {
    std::memcpy(bits + at / 8, &word, 8);
    return;
  }
  const int shift = static_cast<int>(at % 8);
  const u64 before = std::to_integer<u64>(bits[at / 8]) & ((u64{1} << shift) - 1);
  word = (word & ((u64{1} << n) - 1)) << shift | before;
  std::memcpy(bits + at / 8, &word, static_cast<size_t>(sign_bytes(shift + n)));
}

// Elements as signed integers, for which compares are cheapest.
template <class T>
struct Elements {
  using Raw = typename SignBits<T>::Raw;
  using Lane = std::make_signed_t<Raw>;
  static constexpr hn::ScalableTag<Lane> d{};
  using Vec = hn::Vec<decltype(d)>;
  static constexpr int kCount = HWY_MAX_BYTES / static_cast<int>(sizeof(Raw));
  static Vec set(Raw x) { return hn::Set(d, static_cast<Lane>(x)); }
};

// is_plus(x, zero_is_plus) for vectors: `low` <= x <= infinity, with `low` moved to the least signed number, or x is
// `also`.
template <class T>
struct PlusTest {
  using E = Elements<T>;
  using B = SignBits<T>;
  explicit PlusTest(bool zero_is_plus)
      : move(E::set(static_cast<typename B::Raw>(B::kMinusZero - !zero_is_plus))),
        end(E::set(static_cast<typename B::Raw>(B::kMinusZero + B::kInfinity - !zero_is_plus + 1))),
        also(E::set(zero_is_plus ? B::kMinusZero : typename B::Raw{1})) {}
  HWY_INLINE auto operator()(typename E::Vec x) const {
    return hn::Or(hn::Lt(hn::Add(x, move), end), hn::Eq(x, also));
  }
  typename E::Vec move, end, also;
};

template <class T, bool kPresence, bool kFinite>
void pack_as(const SignItem& item) {
  using E = Elements<T>;
  using Lane = typename E::Lane;
  const PlusTest<T> plus(item.zero_is_plus);
  const auto magnitude = E::set(static_cast<typename E::Raw>(~SignBits<T>::kMinusZero));
  const auto* values = static_cast<const std::byte*>(item.values);
  auto largest = hn::Zero(E::d);
  u32 present = 0;
  for_each_sign_word(item.first, item.count, [&](int64_t at, int n) {
    alignas(64) Lane padded[kWordSigns];
    const std::byte* from = values + (at - item.first) * static_cast<int64_t>(sizeof(Lane));
    if (n < kWordSigns) {
      std::memset(padded, 0, sizeof padded);
      std::memcpy(padded, from, static_cast<size_t>(n) * sizeof(Lane));
      from = reinterpret_cast<const std::byte*>(padded);
    }
    u64 word = 0;
    auto any = hn::Zero(E::d);
    for (int k = 0; k < kWordSigns; k += E::kCount) {
      const auto x = hn::LoadU(E::d, reinterpret_cast<const Lane*>(from) + k);
      u64 part = 0;
      hn::StoreMaskBits(E::d, plus(x), reinterpret_cast<u8*>(&part));
      word |= part << k;
      if constexpr (kPresence) any = hn::Or(any, x);
      if constexpr (kFinite) largest = hn::Max(largest, hn::And(x, magnitude));
    }
    store_signs(word, item.bits, at, n);
    if constexpr (kPresence) {
      const int64_t block = at / kSignBlock;
      const bool zero = hn::AllTrue(E::d, hn::Eq(hn::And(any, magnitude), hn::Zero(E::d)));
      present |= static_cast<u32>(!zero) << (block % 8);
      if (block % 8 < 7 && at + n < item.first + item.count) return;
      item.presence[block / 8] = static_cast<std::byte>(present);
      present = 0;
    }
  });
  if constexpr (kFinite) {
    const auto most = E::set(static_cast<typename E::Raw>(SignBits<T>::kInfinity - 1));
    if (!hn::AllFalse(E::d, hn::Gt(largest, most))) *item.nonfinite = 1;
  }
}

template <class T>
void pack_run(const SignItem& item) {
  if (item.presence)
    item.nonfinite ? pack_as<T, true, true>(item) : pack_as<T, true, false>(item);
  else
    item.nonfinite ? pack_as<T, false, true>(item) : pack_as<T, false, false>(item);
}

// A word's values to memory, past the cache if it is aligned and `kStream`.
template <class T, bool kStream>
HWY_INLINE void expand(u64 word, u64 zeros, typename Elements<T>::Vec plus, typename Elements<T>::Vec minus,
                       typename Elements<T>::Lane* values) {
  using E = Elements<T>;
  for (int k = 0; k < kWordSigns; k += E::kCount) {
    const u64 part = word >> k, zero = zeros >> k;
    auto x = hn::IfThenElse(hn::LoadMaskBits(E::d, reinterpret_cast<const u8*>(&part)), plus, minus);
    if (zeros) x = hn::IfThenZeroElse(hn::LoadMaskBits(E::d, reinterpret_cast<const u8*>(&zero)), x);
    if constexpr (kStream)
      hn::Stream(x, E::d, values + k);
    else
      hn::StoreU(x, E::d, values + k);
  }
}

// A float as an element of every lane.
template <class T>
HWY_INLINE typename Elements<T>::Vec as_elements(float x) {
  T stored[kLanes];
  store(vf(x), stored);
  typename Elements<T>::Raw raw;
  std::memcpy(&raw, stored, sizeof raw);
  return Elements<T>::set(raw);
}

template <class T, bool kStream>
void unpack_as(const SignItem& item) {
  using E = Elements<T>;
  using Lane = typename E::Lane;
  auto plus = E::set(SignBits<T>::kOne), minus = E::set(SignBits<T>::kOne | SignBits<T>::kMinusZero);
  int64_t scaled = -1;
  for_each_sign_word(item.first, item.count, [&](int64_t at, int n) {
    if (item.scales && at / kFeedbackBlock != scaled) {
      scaled = at / kFeedbackBlock;
      const float scale = bf16_decode(u32{item.scales[scaled]});
      plus = as_elements<T>(scale), minus = as_elements<T>(-scale);
    }
    const u64 word = load_signs(item.bits, at, n);
    u64 zeros = item.zeros ? load_signs(item.zeros, at, n) : 0;
    const int64_t block = at / kSignBlock;
    if (item.presence && !(std::to_integer<u32>(item.presence[block / 8]) >> (block % 8) & 1u)) zeros = ~u64{0};
    auto* values = static_cast<Lane*>(item.values) + (at - item.first);
    if (n == kWordSigns) return expand<T, kStream>(word, zeros, plus, minus, values);
    alignas(64) Lane padded[kWordSigns];
    expand<T, false>(word, zeros, plus, minus, padded);
    std::memcpy(values, padded, static_cast<size_t>(n) * sizeof(Lane));
  });
  if constexpr (kStream) hwy::FlushStream();
}

template <class T>
void unpack_run(const UnpackRun& run) {
  // The first whole word's values; all others lie as it does.
  const auto first_word = reinterpret_cast<uintptr_t>(run.item.values) +
                          static_cast<uintptr_t>(-run.item.first & (kWordSigns - 1)) * sizeof(T);
  run.stream && first_word % HWY_MAX_BYTES == 0 ? unpack_as<T, true>(run.item) : unpack_as<T, false>(run.item);
}
