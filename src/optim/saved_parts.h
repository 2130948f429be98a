// The tables whose state goes into one file, and the description of that state.
//
// SavedParts divides a checkpoint's data into parts that are read or copied one at a time: chunks, and pieces of
// directly addressable arrays. Each byte is in exactly one part.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "optim/checkpoint.h"
#include "optim/checkpoint_format.h"
#include "optim/param_table.h"

namespace lowtide {

// The tables that divide an optimizer's parameters among them. All use the same parameter and group numbers.
class Tables {
 public:
  explicit Tables(ParamTable& only) : all_{&only} {}
  // owner: for each parameter, the table that steps it.
  Tables(std::vector<ParamTable*> all, std::vector<int> owner) : all_(std::move(all)), owner_(std::move(owner)) {}

  size_t params() const { return all_.front()->params.size(); }
  ParamTable& of(size_t param) const { return *all_[owner_.empty() ? 0 : static_cast<size_t>(owner_[param])]; }
  Parameter& at(size_t param) const { return of(param).params[param]; }
  const char* rule() const { return rule_info(all_.front()->rule).name; }
  Env& env() const { return all_.front()->env; }
  const std::vector<ParamTable*>& all() const { return all_; }

 private:
  std::vector<ParamTable*> all_;
  std::vector<int> owner_;  // empty if there is one table
};

// Describes a parameter with the states of this rule; -1: without state.
CheckpointParam describe(const Parameter& param, int of_rule);
// Describes the current state. Throws kInvalidArgument for partly replaced state.
Checkpoint describe(const Tables& tables, const std::string& metadata);
// Sets the counts that the file holds, one per parameter, so that training continues alike after a save and a load.
void count_as_saved(const Tables& tables);

struct SavedPart {
  struct Range {
    size_t array;             // index in the file
    int64_t at, from, bytes;  // at: in the array; from: in the part
  };
  Store* store = nullptr;  // the chunk's store; nullptr: the part is at `memory`
  size_t chunk = 0;
  const std::byte* memory = nullptr;
  int64_t bytes = 0;
  std::vector<Range> ranges;

  // Like Store::peek.
  void read(std::byte* to) const;
  void write(checkpoint::Writer& file, const std::byte* from) const;
};

class SavedParts {
 public:
  SavedParts(const Tables& tables, const checkpoint::Writer& file);

  // Pieces in file order, then chunks in their stores' order.
  const std::vector<SavedPart>& all() const { return all_; }
  int64_t largest() const { return largest_; }
  // Calls fn(number) for each piece of a parameter. Chunks, and parameters added later, have none.
  template <class Fn>
  void of_param(size_t param, Fn&& fn) const {
    if (param >= of_param_.size()) return;
    for (size_t i = 0; i < of_param_[param].count; ++i) fn(of_param_[param].first + i);
  }
  static constexpr size_t kNone = static_cast<size_t>(-1);
  size_t of_chunk(Store* store, size_t chunk) const {
    const std::vector<size_t>& of = of_chunk_.at(store);
    return chunk < of.size() ? of[chunk] : kNone;
  }
  template <class Fn>
  void for_each_store(Fn&& fn) const {
    for (const auto& [store, of_chunk] : of_chunk_) fn(*store);
  }

 private:
  struct Pieces {
    size_t first = 0, count = 0;
  };
  void add_direct(const Tables& tables, const checkpoint::Writer& file);
  void add_chunks(const Tables& tables, const checkpoint::Writer& file);

  std::vector<SavedPart> all_;
  std::vector<Pieces> of_param_;
  std::unordered_map<Store*, std::vector<size_t>> of_chunk_;  // by chunk; kNone: nothing of it is in the file
  int64_t largest_ = 0;
};

}  // namespace lowtide
