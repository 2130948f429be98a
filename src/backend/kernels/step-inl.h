// The driver of steps: decode -> rule -> absmax -> encode -> store, or signs instead of storing. A group of 256
// work-items takes a block of 256 elements at a time. Include in a target's namespace after master-inl.h.

// A state's number as a type, which every compiler treats as a constant.
template <int k>
struct Index {
  LT_METHOD constexpr operator int() const { return k; }
};

// Calls f(Index<k>()) for k = 0 .. K-1.
template <int K, class Fn>
LT_FN void each(Fn&& f) {
  [&]<int... k>(std::integer_sequence<int, k...>) { (f(Index<k>{}), ...); }
  (std::make_integer_sequence<int, K>{});
}

// The Target of step_blocks that steps the parameter.
struct Parameter {
  template <class StepFn>
  LT_FN void step(const BlockElement& at, StepFn&& next) {
    if (at.inside) store_weight(at, next(load_weight(at)));
  }
};

// Target decides what happens to a parameter; all work-items of a group call its step().
template <class R, class C, class Target>
LT_FN void step_blocks(const DeviceItem* items, const i64* starts, i64 count, i64 tiles,
                       const typename C::Tables* tables) {
  constexpr int K = R::kStates;
  for_each_block<kBlocksOfTile>(items, starts, count, tiles, [&](const BlockElement& at) {
    if (is_stopped(*at.item)) return;
    float state[K ? K : 1] = {};
    Target::step(at, [&](float p) {
      typename R::Args args;
      __builtin_memcpy(&args, at.item->args, sizeof args);
      each<K>([&](auto k) { state[k] = decode_element<C, ((R::kSigned >> k) & 1) != 0>(tables, at, k); });
      const float g = load(at.item->grad, at.element) * at.item->grad_scale;
      return R::template step<float>(p, g, state, args);
    });
    each<K>([&](auto k) {
      const float x = C::kScaled ? limited(state[k]) : state[k];
      encode_block<C, ((R::kSigned >> k) & 1) != 0>(tables, at, k, x);
    });
  });
}
