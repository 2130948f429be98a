#include "optim/saved_parts.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <utility>

#include "backend/catalog.h"
#include "backend/limits.h"
#include "optim/carried.h"

namespace lowtide {

void SavedPart::read(std::byte* to) const {
  if (store) return store->peek(chunk, to);
  std::memcpy(to, memory, static_cast<size_t>(bytes));
}

void SavedPart::write(checkpoint::Writer& file, const std::byte* from) const {
  for (const Range& range : ranges) file.write(range.array, range.at, from + range.from, range.bytes);
}

SavedParts::SavedParts(const Tables& tables, const checkpoint::Writer& file) : of_param_(tables.params()) {
  add_direct(tables, file);
  add_chunks(tables, file);
  for (const SavedPart& part : all_) largest_ = std::max(largest_, part.bytes);
}

// In file order, cut like the file.
void SavedParts::add_direct(const Tables& tables, const checkpoint::Writer& file) {
  for (size_t i = 0; i < file.arrays().size(); ++i) {
    const checkpoint::Array& array = file.arrays()[i];
    const Parameter& param = tables.at(array.part.param);
    if (param.paged) continue;
    const size_t k = array.part.state;
    const auto* const memory = static_cast<const std::byte*>(
        array.part.scales ? static_cast<const void*>(param.scales[k]) : static_cast<const void*>(param.codes[k]));
    Pieces& of = of_param_[array.part.param];
    if (of.count == 0) of.first = all_.size();
    for (int64_t at = 0; at < array.bytes; at += file.piece_bytes(), ++of.count) {
      SavedPart part;
      part.memory = memory + at;
      part.bytes = std::min(file.piece_bytes(), array.bytes - at);
      part.ranges.push_back({i, at, 0, part.bytes});
      all_.push_back(std::move(part));
    }
  }
}

void SavedParts::add_chunks(const Tables& tables, const checkpoint::Writer& file) {
  constexpr size_t kKinds = 2;  // codes, scales
  std::vector<size_t> of_param(tables.params(), 0);
  std::vector<size_t> numbers;  // the arrays' numbers by parameter, state and kind
  for (size_t i = 0, k = 0; i < tables.params(); ++i) {
    of_param[i] = numbers.size();
    numbers.resize(numbers.size() + kMaxArrays * kKinds, kNone);
    for (; k < file.arrays().size() && file.arrays()[k].part.param == i; ++k)
      numbers[of_param[i] + file.arrays()[k].part.state * kKinds + file.arrays()[k].part.scales] = k;
  }
  for (ParamTable* const table : tables.all())
    for (const std::unique_ptr<Residence>& residence : table->residences) {
      Store* const store = residence->store();
      if (!store) continue;
      std::vector<size_t>& of_chunk = of_chunk_[store];
      of_chunk.assign(store->chunk_count(), kNone);
      for (size_t c = 0; c < of_chunk.size(); ++c) {
        const Chunk& chunk = store->chunk(c);
        SavedPart part;
        part.store = store;
        part.chunk = c;
        part.bytes = chunk.bytes;
        for (const Piece& piece : chunk.pieces) {
          const auto param = static_cast<size_t>(piece.param);
          for (int k = 0; k < piece.states && tables.at(param).paged; ++k)
            for (const bool scales : {false, true}) {
              const size_t array = numbers[of_param[param] + static_cast<size_t>(k) * kKinds + scales];
              if (array == kNone) continue;
              const StateFormat& format = piece.format[k];
              const int64_t at =
                  scales ? format.scale_bytes(piece.first_block) : format.code_bytes(piece.first_element);
              const int64_t bytes = scales ? format.scale_bytes(piece.blocks) : format.code_bytes(piece.elements);
              part.ranges.push_back({array, at, scales ? piece.scales_at[k] : piece.codes_at[k], bytes});
            }
        }
        if (part.ranges.empty()) continue;
        of_chunk[c] = all_.size();
        all_.push_back(std::move(part));
      }
    }
}

CheckpointParam describe(const Parameter& param, int of_rule) {
  const CodecInfo& codec = codec_info(param.codec);
  CheckpointParam out;
  out.sizes = param.sizes;
  out.group = param.group;
  out.steps = param.steps;
  out.codec = codec.name;
  out.block = codec.scaled ? kBlockElements : 0;
  out.carried.assign(param.carried.of, param.carried.of + carried_count(param.rule));
  if (of_rule < 0) return out;
  for (int k = 0; k < param.arrays(of_rule); ++k)
    out.states.push_back({param.view(of_rule, k).name, param.is_signed(of_rule, k), param.code_bytes(of_rule, k),
                          param.scale_bytes(of_rule, k)});
  return out;
}

Checkpoint describe(const Tables& tables, const std::string& metadata) {
  Checkpoint out;
  out.rule = tables.rule();
  out.metadata = metadata;
  for (const ParamTable* const table : tables.all()) table->shared_estimate();  // refuses one that is not shared
  for (size_t i = 0; i < tables.params(); ++i) {
    const Parameter& param = tables.at(i);
    tables.of(i).require_whole(param, i);
    out.params.push_back(describe(param, param.has_state && !param.uninitialized ? param.state_rule : -1));
    out.params.back().name = std::to_string(i);
  }
  return out;
}

void count_as_saved(const Tables& tables) {
  for (size_t i = 0; i < tables.params(); ++i) {
    Parameter& param = tables.at(i);
    for (Progress& piece : param.progress) piece = {0, param.uninitialized};
  }
}

}  // namespace lowtide
