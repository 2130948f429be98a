#include "backend/random_keys.h"

namespace lowtide {
namespace {
#include "portable/portable.h"
static_assert(kMaxStates < kWeightStream && kWeightStream < kStreamsOfParameter);
}  // namespace

void set_keys(uint64_t seed, int64_t step, int64_t param, StepItem& item) {
  for (int k = 0; k < kMaxStates; ++k) {
    const u64 stream = static_cast<u64>(param) * kStreamsOfParameter + static_cast<u64>(k);
    const RandomKey key = random_key(seed, static_cast<u64>(step), stream, 0);
    item.key[k][0] = key.k0, item.key[k][1] = key.k1;
  }
}

void keys_at(const StepItem& item, uint32_t index_high, uint32_t (&key)[kMaxStates][2]) {
  for (int k = 0; k < kMaxStates; ++k) {
    const RandomKey at = key_at(RandomKey{item.key[k][0], item.key[k][1]}, index_high);
    key[k][0] = at.k0, key[k][1] = at.k1;
  }
}

}  // namespace lowtide
