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

// The layout by which a parameter's codec is chosen.
Layout whole_layout(std::span<const int64_t> shard, const WholeParam& whole) {
  const size_t dims = shard.size();
  LT_REQUIRE(whole.sizes.size() == dims, "got a shard of %zu dimensions of a parameter of %zu, wanted as many", dims,
             whole.sizes.size());
  for (size_t d = 0; d < dims; ++d) {
    const bool same = whole.sizes[d] == shard[d];
    LT_REQUIRE(same || (shard[d] < whole.sizes[d] && (whole.rows_cut || (d == 0 && dims > 1))),
               "got a shard of size %lld in dimension %zu, of a parameter of size %lld; wanted whole rows, or rows_cut",
               static_cast<long long>(shard[d]), d, static_cast<long long>(whole.sizes[d]));
  }
  LT_REQUIRE(whole.offsets.empty() || whole.offsets.size() == dims,
             "got %zu offsets of a shard of %zu dimensions, wanted one each or none", whole.offsets.size(), dims);
  for (size_t d = 0; d < whole.offsets.size(); ++d)
    LT_REQUIRE(whole.offsets[d] >= 0 && whole.offsets[d] <= whole.sizes[d] - shard[d],
               "got a shard of size %lld at %lld in dimension %zu, of a parameter of size %lld",
               static_cast<long long>(shard[d]), static_cast<long long>(whole.offsets[d]), d,
               static_cast<long long>(whole.sizes[d]));
  return Layout::make(whole.sizes, {});
}

// Whether a shard's elements of a row are in several places of the whole's.
bool row_is_scattered(std::span<const int64_t> shard, const WholeParam& whole) {
  for (size_t d = 2; d < shard.size(); ++d)
    if (shard[d] != whole.sizes[d]) return true;
  return false;
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

int codec_for(int wanted, std::span<const int64_t> sizes, const std::optional<WholeParam>& whole, int64_t min_numel) {
  constexpr int kFp32 = 0;
  const Layout layout = whole ? whole_layout(sizes, *whole) : Layout::make(sizes, {});
  LT_REQUIRE(layout.numel <= kMostElements, "got a parameter of %lld elements, wanted 2^52 at most",
             static_cast<long long>(layout.numel));
  if (layout.numel < min_numel || bytes_with(wanted, layout) >= bytes_with(kFp32, layout)) return kFp32;
  if (whole && whole->rows_cut && (info(wanted).scaled || row_is_scattered(sizes, *whole))) return kFp32;
  return wanted;
}

ShardOrigin origin_of(std::span<const int64_t> sizes, const WholeParam& whole) {
  const Layout layout = Layout::make(whole.sizes, {});
  ShardOrigin origin;
  origin.row_stride = blocks_per_row(layout.row_length, kBlockElements) * kBlockElements;
  if (whole.offsets.empty() || layout.numel == 0) return origin;
  if (sizes.size() < 2) {
    origin.first_column = sizes.empty() ? 0 : whole.offsets[0];
  } else {
    origin.first_row = whole.offsets[0];
    origin.first_column = whole.offsets[1] * (layout.row_length / whole.sizes[1]);
  }
  return origin;
}

}  // namespace lowtide
