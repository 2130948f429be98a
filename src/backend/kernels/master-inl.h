// Parameters in a step: joins 16-bit weights with their residual, and rounds them by their master (portable/master.h);
// keeps others. Kinds are selected at run time, like element types. Include in a target's namespace after device-inl.h.

// The stored form of residuals.
template <int kBits>
using ResidualCode = std::conditional_t<kBits == 8, u8, u16>;

template <class T, int kBits>
LT_FN float join_weight(const DeviceItem& item, i64 element) {
  if constexpr (kBits == 0) {
    return load(item.param, element);
  } else {
    constexpr u32 kSign = 1u << (kBits - 1);
    const u32 code = static_cast<const ResidualCode<kBits>*>(item.master.residual)[element - item.origin];
    const u32 half = static_cast<const u16*>(item.param.data)[offset_of(item.param, element)];
    return Residual<T, kBits>::join(half, (code ^ kSign) - kSign);
  }
}

LT_FN u32 round_stochastic(float x, u32 random, bf16) { return bf16_stochastic(x, random); }
LT_FN u32 round_stochastic(float x, u32 random, f16) { return f16_stochastic(x, random); }

template <class T, int kBits>
LT_FN void split_weight(const DeviceItem& item, i64 element, u64 index, float x) {
  u32 half, rest;
  if constexpr (kBits == 0) {
    const RandomKey key = key_at(RandomKey{item.master.key[0], item.master.key[1]}, static_cast<u32>(index >> 32));
    half = round_stochastic(x, random_16(static_cast<u32>(index), key), T{});
  } else {
    using Code = ResidualCode<kBits>;
    Residual<T, kBits>::split(x, half, rest);
    u8* const to = static_cast<u8*>(item.master.residual) + item.write_offset;
    reinterpret_cast<Code*>(to)[element - item.origin] = static_cast<Code>(rest);
  }
  static_cast<u16*>(item.param.data)[offset_of(item.param, element)] = static_cast<u16>(half);
}

// Not inlined, which in every kernel would double the drivers' compile time. Only for items with a master.
LT_CALLED float load_with_master(const DeviceItem* item, i64 element) {
  const bool is_bf16 = item->param.dtype == 1;
  switch (item->master.kind) {
#define LT_MASTER(number, name, bits) \
  case number:                        \
    return is_bf16 ? join_weight<bf16, bits>(*item, element) : join_weight<f16, bits>(*item, element);
#include "portable/masters.def"
#undef LT_MASTER
  }
  return 0.f;
}

LT_CALLED void store_with_master(const DeviceItem* item, i64 element, u64 index, float x) {
  const bool is_bf16 = item->param.dtype == 1;
  switch (item->master.kind) {
#define LT_MASTER(number, name, bits)                                   \
  case number:                                                          \
    return is_bf16 ? split_weight<bf16, bits>(*item, element, index, x) \
                   : split_weight<f16, bits>(*item, element, index, x);
#include "portable/masters.def"
#undef LT_MASTER
  }
}

// Only for work-items with an element.
LT_FN float load_weight(const BlockElement& at) {
  return at.item->master.kind ? load_with_master(at.item, at.element) : load(at.item->param, at.element);
}

LT_FN void store_weight(const BlockElement& at, float x) {
  if (at.item->master.kind)
    store_with_master(at.item, at.element, at.index, x);
  else
    store(at.item->param, at.element, x);
}
