#include "optim/slot.h"

#include <cstring>

#include "backend/dialect.h"

namespace lowtide {
namespace {

const CodecInfo& info(int codec) { return codecs()[static_cast<size_t>(codec)]; }

// Arrays that a step walks side by side must not start at equal offsets within a page: with large power-of-two sizes
// they would fall on the same cache sets and memory banks (fp32 AdamW, 64 Mi elements, one thread on Zen 4: 32 GB/s
// without the extra page and line, 54 GB/s with them).
size_t aligned(size_t bytes) {
  constexpr size_t kLine = 64, kPage = 4096;
  return (bytes + kLine - 1) / kLine * kLine + (bytes >= 16 * kPage ? kPage + kLine : 0);
}

int64_t bytes_with(int codec, const Layout& layout) {
  const int64_t blocks = layout.rows * ((layout.row_length + kBlockElements - 1) / kBlockElements);
  return layout.numel * info(codec).code_bytes + (info(codec).scaled ? blocks * 4 : 0);
}

}  // namespace

int64_t Slot::blocks_per_row() const { return (layout.row_length + kBlockElements - 1) / kBlockElements; }

int64_t Slot::state_bytes() const {
  return has_state ? rules()[static_cast<size_t>(state_rule)].states * bytes_with(codec, layout) : 0;
}

StateShape Slot::shape_of(int of_rule) const {
  const RuleInfo& of = rules()[static_cast<size_t>(of_rule)];
  const CodecInfo& as = info(codec);
  StateShape shape{layout.rows, layout.row_length, of.states, as.code_bytes, as.scaled, {}};
  for (int k = 0; k < kMaxStates && k < of.states; ++k)
    shape.zero[k] = static_cast<uint8_t>(as.zero_code[(of.signed_mask >> k) & 1]);
  return shape;
}

void Slot::set_fresh(bool now) {
  fresh = now;
  for (Progress& piece : progress) piece.fresh = now;
}

int64_t Slot::record_bytes(int of_rule) const {
  const CodecInfo& as = info(codec);
  const auto code_bytes = static_cast<size_t>(layout.numel * as.code_bytes);
  const size_t scale_bytes = as.scaled ? static_cast<size_t>(layout.rows * blocks_per_row()) * 4 : 0;
  return static_cast<int64_t>(static_cast<size_t>(rules()[static_cast<size_t>(of_rule)].states) *
                              (aligned(code_bytes) + aligned(scale_bytes)));
}

void Slot::allocate_state(Arena& arena, int of_rule) {
  const RuleInfo& of = rules()[static_cast<size_t>(of_rule)];
  const CodecInfo& as = info(codec);
  const size_t code_bytes = static_cast<size_t>(layout.numel * as.code_bytes);
  const size_t scale_bytes = as.scaled ? static_cast<size_t>(layout.rows * blocks_per_row()) * 4 : 0;
  // One record: [codes of every state | scales of every state].
  auto* record = static_cast<std::byte*>(arena.allocate(static_cast<size_t>(record_bytes(of_rule))));
  std::byte* scale_record = record + static_cast<size_t>(of.states) * aligned(code_bytes);
  for (int k = 0; k < of.states; ++k) {
    codes[k] = record + static_cast<size_t>(k) * aligned(code_bytes);
    const unsigned zero = as.zero_code[(of.signed_mask >> k) & 1];
    if (zero) std::memset(codes[k], static_cast<int>(zero), code_bytes);  // the arena's memory is zeroed
    if (as.scaled) scales[k] = reinterpret_cast<float*>(scale_record + static_cast<size_t>(k) * aligned(scale_bytes));
  }
  has_state = true;
  state_rule = of_rule;
  fresh = true;
}

int codec_for(int wanted, const Layout& whole, bool rows_cut, int64_t min_numel) {
  constexpr int kFp32 = 0;
  if (whole.numel < min_numel || bytes_with(wanted, whole) >= bytes_with(kFp32, whole)) return kFp32;
  if (rows_cut && info(wanted).scaled) return kFp32;
  return wanted;
}

}  // namespace lowtide
