#include "optim/slot.h"

#include "backend/dialect.h"
#include "core/error.h"

namespace lowtide {
namespace {

const CodecInfo& info(int codec) { return codecs()[static_cast<size_t>(codec)]; }

int64_t bytes_with(int codec, const Layout& layout) {
  return layout.numel * info(codec).code_bytes +
         (info(codec).scaled ? layout.blocks(kBlockElements) * int64_t{sizeof(float)} : 0);
}

}  // namespace

int64_t Slot::bytes_of(int of_rule) const {
  return rules()[static_cast<size_t>(of_rule)].states * bytes_with(codec, layout);
}

int64_t Slot::state_bytes() const { return has_state ? bytes_of(state_rule) : 0; }

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
  Piece whole = whole_piece(of_rule);
  return lay_out(whole, 0);
}

Piece Slot::whole_piece(int of_rule) const {
  const ShapedParam shaped{0, shape_of(of_rule)};
  return make_piece(shaped, 0, block_count(shaped.shape));
}

void Slot::allocate_state(Arena& arena, int of_rule) {
  Piece whole = whole_piece(of_rule);
  const int64_t bytes = lay_out(whole, 0);
  auto* record = static_cast<std::byte*>(arena.allocate(static_cast<size_t>(bytes)));  // zeroed
  fill_zero(whole, record);
  for (int k = 0; k < whole.states; ++k) {
    codes[k] = record + whole.codes_at[k];
    if (whole.scaled) scales[k] = reinterpret_cast<float*>(record + whole.scales_at[k]);
  }
  has_state = true;
  torn = 0;
  state_rule = of_rule;
  fresh = true;
}

int codec_for(int wanted, const Layout& whole, bool rows_cut, int64_t min_numel) {
  LT_REQUIRE(whole.numel <= kMostElements, "got a parameter of %lld elements, wanted 2^52 at most",
             static_cast<long long>(whole.numel));
  constexpr int kFp32 = 0;
  if (whole.numel < min_numel || bytes_with(wanted, whole) >= bytes_with(kFp32, whole)) return kFp32;
  if (rows_cut && info(wanted).scaled) return kFp32;
  return wanted;
}

}  // namespace lowtide
