// Predicts the parts of the next vote: the same as those of the last vote that was applied. All ranks expect the same
// parts, because they have confirmed that vote to each other. Therefore the announcements of an expected part travel in
// front of its ballots, which saves a round. A rank that makes a different call says so in messages of the expected
// size, and all ranks announce again (docs/project/votes.md).
//
// Used only by the collective's thread.
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
  // Returns the part with this number, or nullptr if nothing is expected.
  const ExpectedPart* part(uint32_t number) const { return number < parts_.size() ? &parts_[number] : nullptr; }

  // Notes that a part of the current vote has completed on all ranks. A vote is not expected again if one of its parts
  // used two levels or one phase, computed a mean, or had a late ballot.
  void note(const Agreement& agreed, const wire::Announcement& mine);
  // Expects the current vote again. Call this when all ranks have applied the vote and each rank knows this.
  void take() { parts_ = usable_ ? under_way_ : std::vector<ExpectedPart>{}; }
  // Call this when a vote begins.
  void begin() { under_way_.clear(), usable_ = true; }

 private:
  std::vector<ExpectedPart> parts_, under_way_;
  bool usable_ = true;
};

// Sends the announcement of a rank that has no ballot of the expected kind, with no ballot after it. Fills records[size
// * wire::kRecordBytes] with the announcements of all ranks. Reuses the memory of the last vote's ballots. Throws the
// channel's errors.
void announce_alone(Channel& channel, Scratches& scratch, const ExpectedPart& expected, const wire::Announcement& mine,
                    std::byte* records);

// Moves the records out of `messages`, in which each of `ranks` messages of `bytes` bytes follows its record.
void take_records(std::byte* messages, int ranks, int64_t bytes, std::byte* records);

}  // namespace lowtide
