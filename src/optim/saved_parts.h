// The tables whose state one file holds, and a description of that state.
//
// The bytes of a checkpoint's data, in parts that are read or copied one at a time: chunks, and pieces of directly
// addressable arrays. Each byte of the data is in exactly one part.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "optim/checkpoint.h"
#include "optim/checkpoint_format.h"
#include "optim/param_table.h"

namespace lowtide {

// The tables among which an optimizer's parameters are divided. All have the same parameter and group numbers.
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
  std::vector<int> owner_;  // empty: there is one table
};

// A parameter with the states of this rule; -1: without state.
CheckpointParam describe(const Parameter& param, int of_rule);
// The current state. Throws kInvalidArgument for partly replaced state.
Checkpoint describe(const Tables& tables, const std::string& metadata);
// The file has one count per parameter: training continues from the same counts after a save and after a load.
void count_as_saved(const Tables& tables);

struct SavedPart {
  struct Range {
    size_t array;             // number in the file
    int64_t at, from, bytes;  // in the array; in the part
  };
  Store* store = nullptr;  // the chunk's store; nullptr: at `memory`
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

  // Pieces in file order, then chunks in the order of their stores.
  const std::vector<SavedPart>& all() const { return all_; }
  int64_t largest() const { return largest_; }
  // Calls fn(number) for the pieces of a parameter. Parameters added since, and chunks, have none.
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
  std::unordered_map<Store*, std::vector<size_t>> of_chunk_;  // by number; kNone: the file contains nothing of it
  int64_t largest_ = 0;
};

}  // namespace lowtide
