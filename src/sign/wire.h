// The messages between ranks: the records of the control rounds, all of one size, and the headers of payload messages.
// Numbers use the machine's byte order; the magic of a rank with the other byte order differs.
//
// Nothing that arrives is trusted. Each record and header ends with its checksum, a header also holds its payload's
// checksum, and a message names the announcement to which it belongs. A damaged, late or stray message is therefore
// never mistaken for the one that is due.
//
// The functions here are pure, may be called from any thread and do not throw.
#pragma once

#include <cstddef>
#include <cstdint>

namespace lowtide::wire {

inline constexpr uint32_t kMagic = 0x4e47534cu;  // "LSGN"
inline constexpr uint16_t kVersion = 4;

enum class Round : uint8_t {
  kMeasure = 1,
  kAnnounce,
  kBallot,  // payload: a rank's signs in one shard or in all shards
  kCounts,  // payload: a node's counts of votes in bit planes
  kResult,  // payload: the decision of a shard's owner
  kConfirm,
  kCommit
};

enum class Kind : uint8_t { kVote = 1, kMean = 2 };

// The reason why a message was not accepted. Messages contain these numbers, so never renumber them.
enum class Reason : uint8_t {
  kFine = 0,
  kNoAnnouncement = 1,  // its sender's announcement was damaged
  kBadHeader = 2,
  kOtherMessage = 3,  // valid, but not the one that was due
  kBadPayload = 4,
  kBadScale = 5,
  kNoVotes = 6,       // its sender had no ballot to count
  kSenderFailed = 7,  // the sender said so
  kBadRecord = 8,     // a damaged confirmation
  kDiffers = 9,       // ranks hold different results
  kLostCounts = 10    // the counts of the sender's node were lost between nodes
};
// Returns a constant text that completes the sentence "the ballot of rank 3 ...".
const char* describe(Reason reason);

// Returns the low half of XXH3-64. To checksum several runs of bytes in turn, pass the previous checksum as `before`.
uint32_t checksum(const void* data, size_t bytes, uint32_t before = 0);

// The beginning of every record. A record ends with its checksum.
struct Prefix {
  uint32_t magic = kMagic;
  uint16_t version = kVersion;
  Round round = Round::kAnnounce;
  Kind kind = Kind::kVote;
  int32_t rank = 0, size = 0;
};

inline constexpr int64_t kRecordBytes = 128;

// Tells what a rank is about to vote on.
struct Announcement {
  Prefix prefix;
  int64_t count = 0;
  uint64_t step = 0, digest = 0, seed = 0, first_index = 0;
  uint64_t sequence =
      0;  // this rank's number of calls; not compared, but makes the checksum to which messages refer unique
  int32_t dtype = 0, ties = 0;
  int32_t algorithm = 0, inside = 0;  // inside: ranks of a node; 0 with one transport
  int32_t residual = -1;              // codec of a mean
  uint32_t weight = 0;
  uint8_t has_presence = 0, commit = 0, nonfinite = 0, failed = 0;
  uint32_t part = 0;  // number of earlier parts of the vote
  uint8_t more = 0;   // another part follows before the confirm and commit rounds
  uint8_t late = 0;   // the ballot is made only after all ranks have announced
  uint8_t apart = 0;  // only with ballots: this call was not expected, so all ranks announce again
  uint8_t reserved[25] = {};
  uint32_t checksum = 0;
};

// Reports a rank's own findings (kConfirm), or its view of the others (kCommit).
struct Verdict {
  Prefix prefix;
  uint64_t step = 0;
  uint32_t announcement = 0;  // checksum of the sender's announcement
  uint32_t result = 0;        // checksum of everything that determines the result
  // The fault, the faulty message, the rank at fault, and the rank that noticed.
  Reason reason = Reason::kFine;
  Round of = Round::kResult;
  Reason suspicion = Reason::kFine;
  uint8_t reserved0 = 0;
  int32_t culprit = -1, witness = -1;
  int32_t suspect = -1;  // the rank whose ballot was left out because of `suspicion`; the cause if results differ
  uint8_t reserved[76] = {};
  uint32_t checksum = 0;
};

struct Measurement {
  Prefix prefix;
  double latency_s = 0, bytes_per_s = 0;
  uint8_t reserved[92] = {};
  uint32_t checksum = 0;
};

static_assert(sizeof(Announcement) == kRecordBytes && sizeof(Verdict) == kRecordBytes &&
              sizeof(Measurement) == kRecordBytes);

// Writes the checksum of a record, and checks a record's checksum and magic.
void seal_record(void* record);
bool sound_record(const void* record);

inline constexpr int64_t kHeaderBytes = 64;
inline constexpr int32_t kEveryone = -1;

struct Header {
  uint32_t magic = kMagic;
  uint16_t version = kVersion;
  Round round = Round::kBallot;
  Reason reason = Reason::kFine;     // kFine, or why the sender could not make the payload
  int32_t sender = 0, receiver = 0;  // ranks, or kEveryone
  uint32_t announcement = 0;         // checksum of the sender's announcement
  uint32_t votes = 0;                // sum of the weights in the payload
  int64_t count = 0;                 // signs of the whole call
  uint64_t step = 0, first = 0;      // first: the payload's first sign
  uint64_t payload_bytes = 0;
  uint32_t payload_checksum = 0, checksum = 0;
};
static_assert(sizeof(Header) == kHeaderBytes);

// Writes `header`, with both checksums, to the start of a message whose payload is in place.
void seal_message(Header header, std::byte* message, int64_t payload_bytes);
// Returns kFine if `message` is valid and matches `due` in round, sender, receiver, count, step, first and, unless it
// is 0 in `due`, announcement. Always copies the message's header to *read.
Reason check_message(const Header& due, const std::byte* message, int64_t payload_bytes, Header* read);

}  // namespace lowtide::wire
