#include "backend/random_keys.h"

#include <algorithm>

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
  const u64 stream = static_cast<u64>(param) * kStreamsOfParameter + kWeightStream;
  const RandomKey key = random_key(seed, static_cast<u64>(step), stream, 0);
  item.master.key[0] = key.k0, item.master.key[1] = key.k1;
}

RandomRun random_run_at(const StepItem& item, int64_t first, int64_t n) {
  const int64_t row_length = item.param_layout->row_length, stride = item.origin.stride(row_length);
  const int64_t row = first / row_length, column = first % row_length;
  const int64_t index = (item.origin.first_row + row) * stride + item.origin.first_column + column;
  const auto low = static_cast<uint32_t>(index);
  const int64_t most = std::min(n, (int64_t{1} << 32) - int64_t{low});
  return {low, static_cast<uint32_t>(index >> 32), stride == row_length ? most : std::min(most, row_length - column)};
}

void weight_key_at(const StepItem& item, uint32_t index_high, uint32_t (&key)[2]) {
  const RandomKey at = key_at(RandomKey{item.master.key[0], item.master.key[1]}, index_high);
  key[0] = at.k0, key[1] = at.k1;
}

void keys_at(const StepItem& item, uint32_t index_high, uint32_t (&key)[kMaxStates][2]) {
  for (int k = 0; k < kMaxStates; ++k) {
    const RandomKey at = key_at(RandomKey{item.key[k][0], item.key[k][1]}, index_high);
    key[k][0] = at.k0, key[k][1] = at.k1;
  }
}

}  // namespace lowtide
