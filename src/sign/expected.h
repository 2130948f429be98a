// The next vote is expected to have the parts of the last applied one. All ranks expect the same, since they have
// confirmed that vote to each other; so the announcements of an expected part travel in front of its ballots, which
// saves a round. A rank that makes another call sends messages of the expected size that say so, and all ranks
// announce once more (docs/sign-collective.md).
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
  int64_t ballot_bytes = 0;  // for each message
};

class Expected {
 public:
  // The part of that number; nullptr: nothing is expected.
  const ExpectedPart* part(uint32_t number) const { return number < parts_.size() ? &parts_[number] : nullptr; }

  // A part of the vote under way has come to its end on all ranks. Votes of which a part is on two levels, in one
  // phase, a mean, or made late are not expected to come again.
  void note(const Agreement& agreed, const wire::Announcement& mine);
  // The vote under way was applied on all ranks, and each rank knows that the others applied it.
  void take() { parts_ = usable_ ? under_way_ : std::vector<ExpectedPart>{}; }
  // A vote begins.
  void begin() { under_way_.clear(), usable_ = true; }

 private:
  std::vector<ExpectedPart> parts_, under_way_;
  bool usable_ = true;
};

// Sends the announcement of a rank that has no ballot of the expected kind, and nothing behind it. Fills
// records[size * wire::kRecordBytes] with the announcements of all ranks. Reuses the memory of the last vote's
// ballots. Throws the channel's errors.
void announce_alone(Channel& channel, Scratches& scratch, const ExpectedPart& expected, const wire::Announcement& mine,
                    std::byte* records);

// Moves the records in front of `ranks` messages of `bytes` each out of `messages`, which has both in turn.
void take_records(std::byte* messages, int ranks, int64_t bytes, std::byte* records);

}  // namespace lowtide
