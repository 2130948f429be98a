// Reads and replaces states between steps, wherever they live.
#pragma once

#include <cstring>

#include "core/error.h"
#include "optim/async_save.h"
#include "optim/param_table.h"

namespace lowtide {

// memcpy that accepts null pointers when there is nothing to copy.
inline void copy_bytes(void* to, const void* from, int64_t bytes) {
  if (bytes) std::memcpy(to, from, static_cast<size_t>(bytes));
}

// Begins a replacement of state, which must not report failures of earlier calls.
class StateChange {
 public:
  explicit StateChange(ParamTable& table) : table_(table) {
    for (const std::unique_ptr<Residence>& residence : table_.residences)
      if (residence->store()) residence->store()->forget_unwritten();
    if (table_.saving) table_.saving->before_any_change();
  }
  // Throws kIo if replaced state could not be written; the state is complete and kept in RAM.
  void check_written() const {
    for (const std::unique_ptr<Residence>& residence : table_.residences)
      if (residence->store()) residence->store()->check_written();
  }

 private:
  ParamTable& table_;
};

inline StateFormat format_of_array(ParamTable& table, int64_t number, int k) {
  const Parameter& param = table.at(number);
  return param.format(param.state_rule, k);
}

inline void require_decoded(ParamTable& table, int64_t number, int k) {
  const Parameter& param = table.with_state(number, k);
  LT_REQUIRE(k < param.states(param.state_rule),
             "got array %d of parameter %lld, the residual of its weights, which has no values of its own; read_state "
             "and write_state copy it, join_master joins it with the weights",
             k, ll(number));
}

// Calls visit(item, first element, elements) for the parts of array k: one if it is directly addressable, otherwise
// each piece. A residual's item has only codes, in no codec.
template <class Fn>
void for_each_part(ParamTable& table, int64_t number, int k, bool change, Fn&& visit) {
  Parameter& param = table.with_state(number, k);
  CodecItem item;
  item.codec = param.codec;
  item.is_signed = param.is_signed(param.state_rule, k);
  item.rows = param.layout.rows;
  item.row_length = param.layout.row_length;
  item.codes = param.codes[k];
  item.scales = param.scales[k];
  item.blocks = param.layout.blocks(kBlockElements);
  const uint32_t bit = uint32_t{1} << k;
  if (!change) table.require_whole(param, static_cast<size_t>(number));
  if (!param.paged) {
    visit(item, int64_t{0}, param.layout.numel);
    if (change) param.partially_written &= ~bit;
    return;
  }
  const uint32_t before = param.partially_written;
  table.residence_of(param).store()->visit(number, change, [&](const Piece& piece, std::byte* memory) {
    item.first_block = piece.first_block;
    item.blocks = piece.blocks;
    item.codes = memory + piece.codes_at[k];
    item.scales = piece.format[k].scales ? reinterpret_cast<float*>(memory + piece.scales_at[k]) : nullptr;
    visit(item, piece.first_element, piece.elements);
    if (change) param.partially_written |= bit;
  });
  if (change) param.partially_written = before & ~bit;
}

}  // namespace lowtide
