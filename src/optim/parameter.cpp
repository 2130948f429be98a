#include "optim/parameter.h"

namespace lowtide {

void Parameter::set_uninitialized(bool now) {
  uninitialized = now;
  for (Progress& piece : progress) piece.uninitialized = now;
}

void Parameter::begin_state(int of_rule) {
  has_state = true;
  partially_written = 0;
  state_rule = of_rule;
  uninitialized = true;
}

void Parameter::allocate_state(Arena& arena, int of_rule) {
  const StateShape stored = state_shape(of_rule);
  const Piece whole = whole_piece(stored);
  auto* record = static_cast<std::byte*>(arena.allocate(static_cast<size_t>(record_bytes(stored))));  // zeroed
  fill_zero(whole, record);
  for (int k = 0; k < whole.states; ++k) {
    codes[k] = record + whole.codes_at[k];
    if (whole.format[k].scales) scales[k] = reinterpret_cast<float*>(record + whole.scales_at[k]);
  }
  begin_state(of_rule);
}

}  // namespace lowtide
