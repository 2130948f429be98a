#include "optim/slot.h"

#include "backend/catalog.h"
#include "core/error.h"
#include "optim/checkpoint.h"

namespace lowtide {
namespace {

const CodecInfo& info(int codec) { return codecs()[static_cast<size_t>(codec)]; }

int64_t bytes_of(const StateFormat& format, const Layout& layout) {
  return format.code_bytes(layout.numel) + format.scale_bytes(layout.blocks(kBlockElements));
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

bool Slot::has_residual() const { return masters()[static_cast<size_t>(master)].residual_bits > 0; }

bool Slot::norms_read_arrays() const {
  const RuleInfo& of = rules()[static_cast<size_t>(rule)];
  return of.norms && (of.norms_read_state || has_residual());
}

int Slot::arrays(int of_rule) const { return rules()[static_cast<size_t>(of_rule)].states + (has_residual() ? 1 : 0); }

StateFormat Slot::format(int of_rule, int k) const {
  if (k == rules()[static_cast<size_t>(of_rule)].states)
    return {.code_bits = masters()[static_cast<size_t>(master)].residual_bits};
  return format_of(of_rule, codec, k);
}

const char* Slot::array_name(int of_rule, int k) const {
  const RuleInfo& of = rules()[static_cast<size_t>(of_rule)];
  return k == of.states ? kResidual : of.state_names[static_cast<size_t>(k)];
}

int64_t Slot::bytes_of(int of_rule) const {
  int64_t bytes = 0;
  for (int k = 0; k < arrays(of_rule); ++k) bytes += lowtide::bytes_of(format(of_rule, k), layout);
  return bytes;
}

int64_t Slot::state_bytes() const { return has_state ? bytes_of(state_rule) : 0; }

StateShape Slot::shape_of(int of_rule) const {
  StateShape shape{layout.rows, layout.row_length, arrays(of_rule), {}};
  for (int k = 0; k < shape.states; ++k) shape.format[k] = format(of_rule, k);
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
    if (whole.format[k].scales) scales[k] = reinterpret_cast<float*>(record + whole.scales_at[k]);
  }
  has_state = true;
  torn = 0;
  state_rule = of_rule;
  fresh = true;
}

int codec_for(int wanted, std::span<const int64_t> sizes, const std::optional<WholeParam>& whole, int64_t min_numel) {
  constexpr int kFp32 = 0;
  const Layout layout = whole ? whole_layout(sizes, *whole) : Layout::make(sizes, {});
  if (info(wanted).has_pairs() && layout.row_length % 2 != 0) wanted = find_codec("dynamic8");
  LT_REQUIRE(layout.numel <= kMostElements, "got a parameter of %lld elements, wanted 2^52 at most",
             static_cast<long long>(layout.numel));
  const auto saves = [&](const StateFormat& format) {
    return bytes_of(format, layout) < bytes_of(info(kFp32).format[0], layout);
  };
  if (layout.numel < min_numel || !saves(info(wanted).format[0]) || !saves(info(wanted).format[1])) return kFp32;
  if (whole && whole->rows_cut && (info(wanted).scaled || row_is_scattered(sizes, *whole))) return kFp32;
  return wanted;
}

int master_for(int wanted, DType dtype) { return dtype == DType::kF32 ? 0 : wanted; }

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
