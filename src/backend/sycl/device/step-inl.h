// The one SYCL driver: decode -> rule -> absmax -> encode -> store. A group of 256 work-items takes a block of 256
// elements at a time.

// Calls f(std::integral_constant<int, k>) for k = 0 .. K-1.
template <int K, class Fn>
LT_FN void each(Fn&& f) {
  [&]<int... k>(std::integer_sequence<int, k...>) { (f(std::integral_constant<int, k>{}), ...); }
  (std::make_integer_sequence<int, K>{});
}

template <class R, class C>
LT_FN void step_blocks(const DeviceItem* items, const i64* starts, i64 count, i64 blocks,
                       const typename C::Tables* tables) {
  constexpr int K = R::kStates;
  constexpr float kLargestState = 0x1.fffffep127f;
  const auto here = this_item();
  const Group group = here.get_group();
  for (i64 b = static_cast<i64>(here.get_group(0)); b < blocks; b += static_cast<i64>(here.get_group_range(0))) {
    const Place at = find_place(items, starts, count, b, static_cast<u32>(here.get_local_id(0)));
    float state[K ? K : 1] = {};
    if (at.inside) {
      typename R::Args args;
      __builtin_memcpy(&args, at.item->args, sizeof args);
      each<K>([&](auto k) { state[k] = decode_element<C, ((R::kSigned >> k) & 1) != 0>(tables, at, k); });
      const float g = load(at.item->grad, at.element) * at.item->grad_scale;
      store(at.item->param, at.element, R::template step<float>(load(at.item->param, at.element), g, state, args));
    }
    each<K>([&](auto k) {
      float x = state[k];
      // An infinite state would make the scale infinite and the whole block NaN.
      if constexpr (C::kScaled) x = x > kLargestState ? kLargestState : x < -kLargestState ? -kLargestState : x;
      const DeviceItem& item = *at.item;
      const Rounding rounding{((item.stochastic >> k) & 1) != 0, RandomKey{item.key[k][0], item.key[k][1]}};
      encode_block<C, ((R::kSigned >> k) & 1) != 0>(group, tables, at, k, x, rounding);
    });
  }
}
