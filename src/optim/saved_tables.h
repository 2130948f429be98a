// The tables whose state one file holds, and the description of that state.
#pragma once

#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include "optim/checkpoint.h"
#include "optim/param_table.h"

namespace lowtide {

// The tables that have an optimizer's parameters between them. All count the same parameters and groups.
class Tables {
 public:
  explicit Tables(ParamTable& only) : all_{&only} {}
  // owner: of each parameter, the table that steps it.
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
// The state as it is now. Throws kInvalidArgument for state that is replaced in part.
Checkpoint describe(const Tables& tables, const std::string& metadata);
// The file has one count for each parameter: training goes on from the same counts after a save and after a load.
void count_as_saved(const Tables& tables);

}  // namespace lowtide
