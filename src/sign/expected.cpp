#include "sign/expected.h"

#include <cstring>

#include "sign/channel.h"
#include "sign/shard_messages.h"

namespace lowtide {

void Expected::note(const Agreement& agreed, const wire::Announcement& mine) {
  const bool two_phase = mine.algorithm == static_cast<int32_t>(SignAlgorithm::kTwoPhase);
  usable_ = usable_ && two_phase && mine.prefix.kind == wire::Kind::kVote && !mine.inside && mine.commit &&
            mine.prefix.size > 1 && !agreed.any_late();
  const ShardLayout shard{shard_signs(mine.count, mine.prefix.size), mine.has_presence != 0};
  under_way_.push_back({mine.count, mine.has_presence != 0, shard.ballot_bytes()});
}

void announce_alone(Channel& channel, Scratches& scratch, const ExpectedPart& expected, const wire::Announcement& mine,
                    std::byte* records) {
  const int64_t each = wire::kRecordBytes + expected.ballot_bytes;
  std::byte* const send = scratch.first.need(each * channel.size());
  std::byte* const received = scratch.second.need(each * channel.size());
  std::memset(send, 0, static_cast<size_t>(each * channel.size()));
  for (int r = 0; r < channel.size(); ++r) std::memcpy(send + r * each, &mine, sizeof mine);
  channel.all_to_all(Channel::Level::kInside, send, received, each, wire::kRecordBytes);
  take_records(received, channel.size(), expected.ballot_bytes, records);
}

void take_records(std::byte* messages, int ranks, int64_t bytes, std::byte* records) {
  const int64_t each = wire::kRecordBytes + bytes;
  for (int r = 0; r < ranks; ++r) {
    std::memcpy(records + r * wire::kRecordBytes, messages + r * each, static_cast<size_t>(wire::kRecordBytes));
    std::memmove(messages + r * bytes, messages + r * each + wire::kRecordBytes, static_cast<size_t>(bytes));
  }
}

}  // namespace lowtide
