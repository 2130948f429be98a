// The control rounds around the payload, in which all ranks come to the same decision: announce before it, confirm and
// commit after it. Each is one all_gather of records of 128 bytes. docs/sign-collective.md says what each protects
// from.
//
// These functions block until all ranks have come. They throw TransportError where the transport fails, and
// CollectiveError on all ranks alike where the ranks must not go on; nothing is applied then.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "sign/channel.h"
#include "sign/wire.h"

namespace lowtide {

// The announcements of all ranks, as this one got them. It owns its records.
struct Agreement {
  std::vector<wire::Announcement> of;  // [size]; a damaged one is zeroed: no votes
  std::vector<wire::Reason> reasons;   // kFine or kNoAnnouncement
  std::vector<int> nonfinite, failed;  // if there are any, nothing is to be applied
  bool with_ballots = false;           // all ranks' ballots came with the announcements

  // An announcement that arrived sound; all sound ones agree on the call.
  const wire::Announcement& call() const;
  // The checksum that a rank's messages refer to; 0 if its announcement was damaged.
  uint32_t announcement(int rank) const {
    const auto r = static_cast<size_t>(rank);
    return reasons[r] == wire::Reason::kFine ? of[r].checksum : 0;
  }
  uint32_t weight(int rank) const { return of[static_cast<size_t>(rank)].weight; }
  // Covers weights, and which ballots are late. The same on all ranks unless an announcement was damaged.
  uint32_t weights_checksum() const;
  bool any_late() const;

  // The agreement of a rank that knows its own announcement alone.
  static Agreement of_one(const wire::Announcement& mine);
};

// Fills in the round, rank, size and checksum.
void seal_announcement(const Channel& channel, wire::Announcement* mine);

// Tells all ranks what this one is about to do, and checks that all do the same. Ranks that failed or hold values that
// are not finite are named in the agreement; that is no error.
Agreement announce(Channel& channel, const wire::Announcement& mine);
// The same for announcements that came with ballots: records[size() * wire::kRecordBytes]. nullopt if a rank made
// another call than expected: then all announce.
std::optional<Agreement> announced_with_ballots(const Channel& channel, const wire::Announcement& mine,
                                                const std::byte* records);

// All ranks' measurements that arrived sound.
std::vector<wire::Measurement> gather_measurements(Channel& channel, wire::Measurement mine);

// The findings of a rank that put the result together.
struct Found {
  wire::Reason reason = wire::Reason::kFine;  // why the result is not known
  int culprit = -1;                           // the rank at fault
  uint32_t result = 0;                        // checksum of everything that the result follows from
  // A ballot that this rank left out: the cause, should the others have got it.
  int suspect = -1;
  wire::Reason suspicion = wire::Reason::kFine;
};

// Adds a rank's findings in one part of a vote to its findings in the parts before. The first fault stays; a missing
// announcement is a fault.
void join(Found* all, const Agreement& agreed, const Found& part);

// Returns if all ranks found the same result in all parts and, unless the call does without the commit round, each
// knows that the others did.
void confirm(Channel& channel, const Agreement& agreed, const Found& found);

}  // namespace lowtide
