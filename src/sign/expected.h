// The next vote is expected to have the same parts as the last applied one. All ranks expect the same, because they
// have confirmed that vote to each other; so the announcements of an expected part travel in front of its ballots,
// which saves a round. A rank that makes another call sends messages of the expected size that say so, and all ranks
// announce again (docs/project/votes.md).
//
// Used by the collective's thread.
#pragma once

#include <cstdint>
#include <vector>

#include "sign/exchange.h"
#include "sign/rounds.h"

namespace lowtide {

struct ExpectedPart {
  int64_t count = 0;
  bool presence = false;
  int64_t ballot_bytes = 0;  // size of each message
};

class Expected {
 public:
  // The part with that number; nullptr: nothing is expected.
  const ExpectedPart* part(uint32_t number) const { return number < parts_.size() ? &parts_[number] : nullptr; }

  // Notes that a part of the current vote has completed on all ranks. A vote with a part on two levels, in one phase,
  // for a mean, or made late is not expected again.
  void note(const Agreement& agreed, const wire::Announcement& mine);
  // The current vote was applied on all ranks, and each rank knows that the others applied it.
  void take() { parts_ = usable_ ? under_way_ : std::vector<ExpectedPart>{}; }
  // Begins a vote.
  void begin() { under_way_.clear(), usable_ = true; }

 private:
  std::vector<ExpectedPart> parts_, under_way_;
  bool usable_ = true;
};

// Sends the announcement of a rank without a ballot of the expected kind, and nothing after it. Fills records[size *
// wire::kRecordBytes] with the announcements of all ranks. Reuses the memory of the last vote's ballots. Throws the
// channel's errors.
void announce_alone(Channel& channel, Scratches& scratch, const ExpectedPart& expected, const wire::Announcement& mine,
                    std::byte* records);

// Extracts the records in front of `ranks` messages of `bytes` each from `messages`, where they alternate.
void take_records(std::byte* messages, int ranks, int64_t bytes, std::byte* records);

}  // namespace lowtide
