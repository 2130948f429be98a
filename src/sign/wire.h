// What ranks send each other: records of the control rounds, all of one size, and headers of payload messages. In the
// byte order of the machine: ranks of another order have another magic.
#pragma once

#include <cstddef>
#include <cstdint>

namespace lowtide::wire {

inline constexpr uint32_t kMagic = 0x4e47534cu;  // "LSGN"
inline constexpr uint16_t kVersion = 1;

enum class Round : uint8_t {
  kMeasure = 1,
  kAnnounce,
  kBallot,  // payload: a rank's signs of one shard, or of all
  kCounts,  // payload: a node's counts of votes in planes
  kResult,  // payload: what a shard's owner found
  kConfirm,
  kSettle
};

enum class Kind : uint8_t { kVote = 1, kMean = 2 };

// Why a message was not taken. In messages: never renumber.
enum class Reason : uint8_t {
  kFine = 0,
  kNoAnnouncement = 1,  // its sender's announcement was damaged
  kBadHeader = 2,
  kOtherMessage = 3,  // sound, but not the one that was due
  kBadPayload = 4,
  kBadScale = 5,
  kNoVotes = 6,       // no ballot was left to its sender
  kSenderFailed = 7,  // by its own account
  kBadRecord = 8,     // a confirmation
  kDiffers = 9,       // results are not the same
  kLostCounts = 10    // between nodes
};
const char* describe(Reason reason);

// The start and the end of all records.
struct Prefix {
  uint32_t magic = kMagic;
  uint16_t version = kVersion;
  Round round = Round::kAnnounce;
  Kind kind = Kind::kVote;
  int32_t rank = 0, size = 0;
};

inline constexpr int64_t kRecordBytes = 128;

struct Announcement {
  Prefix prefix;
  int64_t count = 0;
  uint64_t step = 0, digest = 0, seed = 0, first_index = 0;
  uint64_t sequence = 0;  // calls of this rank so far: not compared, but part of the checksum that messages refer to
  int32_t dtype = 0, ties = 0;
  int32_t algorithm = 0, inside = 0;  // ranks of a node; 0: one transport
  int32_t residual = -1;              // codec of a mean
  uint32_t weight = 0;
  uint8_t has_presence = 0, settle = 0, nonfinite = 0, failed = 0;
  uint8_t reserved[32] = {};
  uint32_t crc = 0;
};

struct Verdict {
  Prefix prefix;
  uint64_t step = 0;
  uint32_t announcement = 0;  // its sender's, by checksum
  uint32_t result = 0;        // checksum of everything that the result follows from
  // What is wrong, which rank's fault it is, and which rank saw it.
  Reason reason = Reason::kFine;
  Round of = Round::kResult;  // message
  Reason suspicion = Reason::kFine;
  uint8_t reserved0 = 0;
  int32_t culprit = -1, witness = -1;
  int32_t suspect = -1;  // whose ballot it left out, and why: the cause, if results differ
  uint8_t reserved[76] = {};
  uint32_t crc = 0;
};

struct Measurement {
  Prefix prefix;
  double latency_s = 0, bytes_per_s = 0;
  uint8_t reserved[92] = {};
  uint32_t crc = 0;
};

static_assert(sizeof(Announcement) == kRecordBytes && sizeof(Verdict) == kRecordBytes &&
              sizeof(Measurement) == kRecordBytes);

// Sets the checksum, or checks it and the magic.
void seal_record(void* record);
bool sound_record(const void* record);

inline constexpr int64_t kHeaderBytes = 64;
inline constexpr int32_t kEveryone = -1;

struct Header {
  uint32_t magic = kMagic;
  uint16_t version = kVersion;
  Round round = Round::kBallot;
  Reason reason = Reason::kFine;     // kSenderFailed
  int32_t sender = 0, receiver = 0;  // ranks, or kEveryone
  uint32_t announcement = 0;         // its sender's, by checksum
  uint32_t votes = 0;                // weights that went into it
  int64_t count = 0;                 // signs of the whole call
  uint64_t step = 0, first = 0;      // first: sign that it begins with
  uint64_t payload_bytes = 0;
  uint32_t payload_crc = 0, crc = 0;
};
static_assert(sizeof(Header) == kHeaderBytes);

// Writes the header before a payload that is in place.
void seal_message(Header header, std::byte* message, int64_t payload_bytes);
// Whether it is the message that `due` describes (round, sender, receiver, count, step, first; its announcement, if
// that is not 0); the header as read goes to *read.
Reason check_message(const Header& due, const std::byte* message, int64_t payload_bytes, Header* read);

}  // namespace lowtide::wire
