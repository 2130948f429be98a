// The control rounds around the payload, in which all ranks reach the same decision: announce before it, confirm and
// commit after it. Each is one all_gather of records of 128 bytes. docs/project/votes.md says what each guards
// against.
//
// These functions block until all ranks have joined. They throw TransportError if the transport fails, and
// CollectiveError on all ranks alike if the ranks must not proceed; then nothing is applied.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "sign/channel.h"
#include "sign/wire.h"

namespace lowtide {

// The announcements of all ranks, as received here. It owns its records.
struct Agreement {
  std::vector<wire::Announcement> of;  // [size]; a damaged one is zeroed: no votes
  std::vector<wire::Reason> reasons;   // kFine or kNoAnnouncement
  std::vector<int> nonfinite, failed;  // if there are any, nothing must be applied
  bool with_ballots = false;           // all ranks' ballots came with the announcements

  // Any valid announcement; all valid ones agree on the call.
  const wire::Announcement& call() const;
  // The checksum to which a rank's messages refer; 0 if its announcement was damaged.
  uint32_t announcement(int rank) const {
    const auto r = static_cast<size_t>(rank);
    return reasons[r] == wire::Reason::kFine ? of[r].checksum : 0;
  }
  uint32_t weight(int rank) const { return of[static_cast<size_t>(rank)].weight; }
  // Covers weights, and which ballots are late. The same on all ranks unless an announcement was damaged.
  uint32_t weights_checksum() const;
  bool any_late() const;

  // The agreement of a rank that only knows its own announcement.
  static Agreement of_one(const wire::Announcement& mine);
};

// Fills in the round, rank, size and checksum.
void seal_announcement(const Channel& channel, wire::Announcement* mine);

// Tells all ranks what this rank is about to do, and checks that all do the same. The agreement names ranks that failed
// or have non-finite values; that is not an error.
Agreement announce(Channel& channel, const wire::Announcement& mine);
// The same for announcements that came with ballots: records[size() * wire::kRecordBytes]. nullopt if a rank made an
// unexpected call: then all announce.
std::optional<Agreement> announced_with_ballots(const Channel& channel, const wire::Announcement& mine,
                                                const std::byte* records);

// The valid measurements of all ranks.
std::vector<wire::Measurement> gather_measurements(Channel& channel, wire::Measurement mine);

// The findings of a rank that assembled the result.
struct Found {
  wire::Reason reason = wire::Reason::kFine;  // why the result is not known
  int culprit = -1;                           // the rank at fault
  uint32_t result = 0;                        // checksum of everything that determines the result
  // A ballot that this rank left out: the cause, if the others received it.
  int suspect = -1;
  wire::Reason suspicion = wire::Reason::kFine;
};

// Adds a rank's findings in one part of a vote to those in earlier parts. The first fault stays; a missing announcement
// is a fault.
void join(Found* all, const Agreement& agreed, const Found& part);

// Returns if all ranks found the same result in all parts and, unless the call omits the commit round, each knows that
// the others did.
void confirm(Channel& channel, const Agreement& agreed, const Found& found);

}  // namespace lowtide
