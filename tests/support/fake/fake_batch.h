// The items of a call, with copies of the data that they borrow.
#pragma once

#include <span>

#include "support/fake/fake_backend.h"
#include "support/test.h"

namespace lowtide::fake {

struct FakeBackend::Batch {
  std::deque<Layout> layouts;
  std::deque<std::array<std::byte, kArgsBytes>> args;
  std::deque<BallotTarget> ballots;
  std::vector<StepItem> items;

  explicit Batch(std::span<const StepItem> from) {
    for (StepItem item : from) {
      item.param_layout = &layouts.emplace_back(*item.param_layout);
      item.grad_layout = &layouts.emplace_back(*item.grad_layout);
      auto& copy = args.emplace_back();
      std::memcpy(copy.data(), item.args, kArgsBytes);  // callers' arrays have this size
      item.args = copy.data();
      if (item.ballot) item.ballot = &ballots.emplace_back(*item.ballot);
      items.push_back(item);
    }
  }
};

}  // namespace lowtide::fake
