// The control rounds, in which all ranks reach the same decision: they announce before the payload, and confirm and
// commit after it. Each round is one all_gather of 128-byte records. docs/project/votes.md says what each round guards
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

// The announcements of all ranks, as this rank received them. Owns its records.
struct Agreement {
  std::vector<wire::Announcement> of;  // [size]; a damaged announcement is zeroed and so has no votes
  std::vector<wire::Reason> reasons;   // kFine or kNoAnnouncement
  std::vector<int> nonfinite, failed;  // ranks; if there are any, nothing may be applied
  bool with_ballots = false;           // all ranks' ballots came with the announcements

  // Returns any valid announcement; all valid announcements agree on the call.
  const wire::Announcement& call() const;
  // Returns the checksum to which a rank's messages refer, or 0 if the rank's announcement was damaged.
  uint32_t announcement(int rank) const {
    const auto r = static_cast<size_t>(rank);
    return reasons[r] == wire::Reason::kFine ? of[r].checksum : 0;
  }
  uint32_t weight(int rank) const { return of[static_cast<size_t>(rank)].weight; }
  // Covers the weights and which ballots are late. The same on all ranks unless an announcement was damaged.
  uint32_t weights_checksum() const;
  bool any_late() const;

  // Returns the agreement of a rank that knows only its own announcement.
  static Agreement of_one(const wire::Announcement& mine);
};

// Fills in the announcement's round, rank, size and checksum.
void seal_announcement(const Channel& channel, wire::Announcement* mine);

// Tells all ranks what this rank is about to do, and checks that all ranks do the same. The agreement names the ranks
// that failed or have non-finite values; neither is an error here.
Agreement announce(Channel& channel, const wire::Announcement& mine);
// Checks the announcements that came with ballots, in records[size() * wire::kRecordBytes]. Returns nullopt if a rank
// made an unexpected call; then all ranks call announce().
std::optional<Agreement> announced_with_ballots(const Channel& channel, const wire::Announcement& mine,
                                                const std::byte* records);

// Exchanges the ranks' measurements and returns the valid ones.
std::vector<wire::Measurement> gather_measurements(Channel& channel, wire::Measurement mine);

// The findings of a rank that assembled the result.
struct Found {
  wire::Reason reason = wire::Reason::kFine;  // why the result is unknown
  int culprit = -1;                           // the rank at fault
  uint32_t result = 0;                        // checksum of everything that determines the result
  // A rank whose ballot this rank left out; it is the cause if the other ranks received that ballot.
  int suspect = -1;
  wire::Reason suspicion = wire::Reason::kFine;
};

// Adds a rank's findings in one part of a vote to its findings in earlier parts. The first fault is kept; a missing
// announcement is a fault.
void join(Found* all, const Agreement& agreed, const Found& part);

// Returns only if all ranks found the same result in all parts and, unless the call omits the commit round, each rank
// knows that the others did.
void confirm(Channel& channel, const Agreement& agreed, const Found& found);

}  // namespace lowtide
