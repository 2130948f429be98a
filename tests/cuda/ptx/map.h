// Operations that do the same for each lane: a function of the lane's values, made a handler.
#pragma once

#include "operations.h"
#include "warp.h"

namespace ptx {

template <class T>
constexpr char letter() {
  return sizeof(T) == 8 ? 'd' : sizeof(T) == 4 ? 'w' : sizeof(T) == 2 ? 'h' : 'x';
}

// fn(lane) for the lanes of the mask; whole warps are what compilers can vectorize.
template <class Fn>
void each_lane(uint32_t mask, Fn&& fn) {
  if (mask == kAllLanes) {
#ifndef __clang__
#pragma GCC ivdep
#endif
    for (uint32_t lane = 0; lane < kWarp; ++lane) fn(lane);
  } else {
    for (; mask; mask &= mask - 1) fn(static_cast<uint32_t>(std::countr_zero(mask)));
  }
}

template <class Fn, class R, class... A>
struct Map {
  static void run(Warp& warp, const Instruction& at, uint32_t mask) {
    run_on(warp, at, mask, std::index_sequence_for<A...>());
  }
  template <size_t... I>
  static void run_on(Warp& warp, const Instruction& at, uint32_t mask, std::index_sequence<I...>) {
    on_words(warp.destination<R>(at.x[0]), mask, warp.source<A>(at.x[I + 1])...);
  }
  static void on_words(Word<R>* to, uint32_t mask, const Word<A>*... from) {
    each_lane(mask, [&](uint32_t lane) { to[lane] = to_word<R>(Fn{}(from_word<A>(from[lane])...)); });
  }
};

// The result is a predicate.
template <class Fn, class... A>
struct Test {
  static void run(Warp& warp, const Instruction& at, uint32_t mask) {
    run_on(warp, at, mask, std::index_sequence_for<A...>());
  }
  template <size_t... I>
  static void run_on(Warp& warp, const Instruction& at, uint32_t mask, std::index_sequence<I...>) {
    warp.set_predicate(at.x[0], mask, on_words(warp.source<A>(at.x[I + 1])...));
  }
  static uint32_t on_words(const Word<A>*... from) {
    uint32_t bits = 0;
    for (uint32_t lane = 0; lane < kWarp; ++lane) bits |= uint32_t{Fn{}(from_word<A>(from[lane])...)} << lane;
    return bits;
  }
};

// R and A are the types of the result and of the operands.
template <class R, class... A, class Fn>
void add_map(Operations& all, const std::string& name, Fn) {
  all[name] = {Map<Fn, R, A...>::run, nullptr, {letter<R>(), letter<A>()...}};
}
template <class... A, class Fn>
void add_test(Operations& all, const std::string& name, Fn) {
  all[name] = {Test<Fn, A...>::run, nullptr, {'p', letter<A>()...}};
}

}  // namespace ptx
