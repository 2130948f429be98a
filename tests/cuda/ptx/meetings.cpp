// Instructions at which lanes of a warp meet: shfl, vote, redux and bar.warp. Lanes' masks have been compared before.
#include "map.h"

namespace ptx {
namespace {

enum class Shuffle { kDown, kButterfly, kIndex };

// The lane that is read, and whether it lies in the segment that c gives.
template <Shuffle kMode>
std::pair<uint32_t, bool> other_lane(uint32_t lane, uint32_t b, uint32_t c) {
  const uint32_t by = b & 31, clamp = c & 31, segment = c >> 8 & 31;
  const uint32_t last = (lane & segment) | (clamp & ~segment), first = lane & segment;
  const uint32_t from = kMode == Shuffle::kDown        ? lane + by
                        : kMode == Shuffle::kButterfly ? lane ^ by
                                                       : first | (by & ~segment);
  const bool inside = from <= last;
  return {inside ? from : lane, inside};
}

template <Shuffle kMode>
void shuffle(Warp& warp, const Instruction* const* of_lane, uint32_t mask) {
  uint32_t values[kWarp] = {}, results[kWarp] = {}, predicates = 0;
  each_lane(mask, [&](uint32_t lane) { values[lane] = warp.source<uint32_t>(of_lane[lane]->x[2])[lane]; });
  for (uint32_t rest = mask; rest; rest &= rest - 1) {
    const auto lane = static_cast<uint32_t>(std::countr_zero(rest));
    const Instruction& at = *of_lane[lane];
    const auto [from, inside] =
        other_lane<kMode>(lane, warp.source<uint32_t>(at.x[3])[lane], warp.source<uint32_t>(at.x[4])[lane]);
    if (!(mask >> from & 1))
      warp.fail(lane, "a shuffle that reads lane " + std::to_string(from) + ", which is not in it");
    results[lane] = values[from];
    predicates |= uint32_t{inside} << lane;
  }
  for (uint32_t rest = mask; rest; rest &= rest - 1) {
    const auto lane = static_cast<uint32_t>(std::countr_zero(rest));
    warp.destination<uint32_t>(of_lane[lane]->x[0])[lane] = results[lane];
    warp.set_predicate(of_lane[lane]->x[1], 1u << lane, predicates);
  }
}

// The predicates of all lanes that have met.
uint32_t votes(Warp& warp, const Instruction* const* of_lane, uint32_t mask) {
  uint32_t all = 0;
  for (uint32_t rest = mask; rest; rest &= rest - 1) {
    const auto lane = static_cast<uint32_t>(std::countr_zero(rest));
    const Instruction& at = *of_lane[lane];
    all |= (warp.predicate(at.x[1]) ^ (at.source_negated ? kAllLanes : 0)) & 1u << lane;
  }
  return all;
}

}  // namespace

void add_meetings(Operations& all) {
  all["shfl.sync.down.b32"] = {nullptr, shuffle<Shuffle::kDown>, "w|pwwww"};
  all["shfl.sync.bfly.b32"] = {nullptr, shuffle<Shuffle::kButterfly>, "w|pwwww"};
  all["shfl.sync.idx.b32"] = {nullptr, shuffle<Shuffle::kIndex>, "w|pwwww"};
  all["vote.sync.any.pred"] = {
      nullptr,
      [](Warp& warp, const Instruction* const* of_lane, uint32_t mask) {
        const uint32_t found = votes(warp, of_lane, mask) ? kAllLanes : 0;
        each_lane(mask, [&](uint32_t lane) { warp.set_predicate(of_lane[lane]->x[0], 1u << lane, found); });
      },
      "ppw"};
  all["vote.sync.ballot.b32"] = {
      nullptr,
      [](Warp& warp, const Instruction* const* of_lane, uint32_t mask) {
        const uint32_t found = votes(warp, of_lane, mask);
        each_lane(mask, [&](uint32_t lane) { warp.destination<uint32_t>(of_lane[lane]->x[0])[lane] = found; });
      },
      "wpw"};
  all["redux.sync.max.u32"] = {
      nullptr,
      [](Warp& warp, const Instruction* const* of_lane, uint32_t mask) {
        uint32_t most = 0;
        each_lane(mask,
                  [&](uint32_t lane) { most = std::max(most, warp.source<uint32_t>(of_lane[lane]->x[1])[lane]); });
        each_lane(mask, [&](uint32_t lane) { warp.destination<uint32_t>(of_lane[lane]->x[0])[lane] = most; });
      },
      "www"};
  // The only one of them that orders accesses of memory.
  all["bar.warp.sync"] = {nullptr, [](Warp& warp, const Instruction* const*, uint32_t mask) { warp.synchronize(mask); },
                          "w"};
}

const Operations& operations() {
  static const Operations all = [] {
    Operations made;
    add_integers(made), add_bits(made), add_floats(made), add_doubles(made), add_comparisons(made);
    add_approximations(made), add_conversions(made), add_meetings(made);
    return made;
  }();
  return all;
}

}  // namespace ptx
