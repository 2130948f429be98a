#include "sign/wire.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <cstring>
#include <iterator>

namespace lowtide::wire {

const char* describe(Reason reason) {
  static constexpr const char* kWords[] = {
      "is fine",
      "was damaged",
      "has a damaged header",
      "is one of another call, shard or rank",
      "does not match its checksum",
      "has scales that are negative or not finite",
      "has no ballots in it",
      "could not be made there",
      "was damaged",
      "differs from that of the others",
      "was lost with the counts of its node",
  };
  static_assert(std::size(kWords) == static_cast<size_t>(Reason::kLostCounts) + 1);
  const auto number = static_cast<size_t>(reason);
  return number < std::size(kWords) ? kWords[number] : "has an unknown fault";
}

uint32_t checksum(const void* data, size_t bytes, uint32_t before) {
  return static_cast<uint32_t>(XXH3_64bits_withSeed(data, bytes, before));
}

namespace {
constexpr size_t kSumBytes = sizeof(uint32_t);
constexpr size_t kRecordSumAt = kRecordBytes - kSumBytes, kHeaderSumAt = kHeaderBytes - kSumBytes;
static_assert(offsetof(Announcement, checksum) == kRecordSumAt && offsetof(Verdict, checksum) == kRecordSumAt &&
              offsetof(Measurement, checksum) == kRecordSumAt && offsetof(Header, checksum) == kHeaderSumAt);
}  // namespace

void seal_record(void* record) {
  const uint32_t sum = checksum(record, kRecordSumAt);
  std::memcpy(static_cast<std::byte*>(record) + kRecordSumAt, &sum, kSumBytes);
}

bool sound_record(const void* record) {
  uint32_t sum, magic;
  std::memcpy(&sum, static_cast<const std::byte*>(record) + kRecordSumAt, kSumBytes);
  std::memcpy(&magic, record, sizeof magic);
  return magic == kMagic && sum == checksum(record, kRecordSumAt);
}

void seal_message(Header header, std::byte* message, int64_t payload_bytes) {
  header.payload_bytes = static_cast<uint64_t>(payload_bytes);
  header.payload_checksum = checksum(message + kHeaderBytes, static_cast<size_t>(payload_bytes));
  header.checksum = checksum(&header, kHeaderSumAt);
  std::memcpy(message, &header, sizeof header);
}

Reason check_message(const Header& due, const std::byte* message, int64_t payload_bytes, Header* read) {
  std::memcpy(read, message, sizeof *read);
  if (read->magic != kMagic || read->version != kVersion || read->checksum != checksum(read, kHeaderSumAt))
    return Reason::kBadHeader;
  if (read->round != due.round || read->sender != due.sender || read->receiver != due.receiver ||
      read->count != due.count || read->step != due.step || read->first != due.first ||
      read->payload_bytes != static_cast<uint64_t>(payload_bytes) ||
      (due.announcement && read->announcement != due.announcement))
    return Reason::kOtherMessage;
  if (read->payload_checksum != checksum(message + kHeaderBytes, static_cast<size_t>(payload_bytes)))
    return Reason::kBadPayload;
  return read->reason == Reason::kFine ? Reason::kFine : Reason::kSenderFailed;
}

}  // namespace lowtide::wire
