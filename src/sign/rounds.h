// The rounds around the payload, in which all ranks come to the same decision: announce before it, confirm and settle
// behind it.
#pragma once

#include <cstdint>
#include <vector>

#include "sign/channel.h"
#include "sign/wire.h"

namespace lowtide {

// What all ranks announced, as this one got it.
struct Agreement {
  std::vector<wire::Announcement> of;  // [size]; of one that was damaged only the weight counts, which is 0
  std::vector<wire::Reason> reasons;   // kFine or kNoAnnouncement
  std::vector<int> nonfinite, failed;  // nothing is to be applied if there are any

  // What messages of a rank refer to; 0 where it was damaged.
  uint32_t announcement(int rank) const {
    const auto r = static_cast<size_t>(rank);
    return reasons[r] == wire::Reason::kFine ? of[r].crc : 0;
  }
  uint32_t weight(int rank) const { return of[static_cast<size_t>(rank)].weight; }
  // Where nobody's announcement is known to be damaged, all ranks have this one.
  uint32_t weights_crc() const;
};

// Fills in rank, size and checksum. Throws CollectiveError if ranks do not agree.
Agreement announce(Channel& channel, wire::Announcement mine);

// All ranks' measurements that came sound. Throws CollectiveError if a rank is in another round.
std::vector<wire::Measurement> gather_measurements(Channel& channel, wire::Measurement mine);

// What a rank found when it put the result together.
struct Found {
  wire::Reason reason = wire::Reason::kFine;  // why a result is not known
  int culprit = -1;                           // its sender
  uint32_t result_crc = 0;                    // of everything that the results follow from
  // A ballot that this rank left out: the cause, should the others have got it.
  int suspect = -1;
  wire::Reason suspicion = wire::Reason::kFine;
};

// Returns if all ranks found the same result, and all know that; throws CollectiveError on all of them otherwise.
void confirm(Channel& channel, const Agreement& agreed, const Found& found);

}  // namespace lowtide
