// Fuzzes what arrives from other ranks in a vote: announcements, ballots, results, verdicts. This rank is real. The
// others send what it sends, as if it came from them, and the input spoils that: it says for each message which bytes
// change, and whether the message gets its checksum anew.
//
//   3 bytes   ranks, signs (240 and more: nine times as many), options
//   then for each message that arrives: a byte with the number of changes (low 3 bits) and whether it is sealed again
//   (128), and 3 bytes for each change: place, and what is added to that byte
//
// Whatever comes, the call returns or throws an Error, rejects ranks that there are, and leaves bits behind the last
// sign zero.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <stdexcept>
#include <vector>

#include "backend/backend.h"
#include "sign/exchange.h"
#include "sign/shard_messages.h"

namespace {

using namespace lowtide;

// Votes sign by sign; a tie is +.
class Counter final : public Backend {
 public:
  const char* name() const override { return "counter"; }
  std::vector<std::string> targets() const override { return {"counter"}; }
  const char* target() const override { return "counter"; }
  void vote_signs(const VoteItem& item, int, void*) override {
    std::memset(item.result, 0, static_cast<size_t>(sign_bytes(item.count)));
    if (item.zeros) std::memset(item.zeros, 0, static_cast<size_t>(sign_bytes(item.count)));
    if (item.result_presence) std::memset(item.result_presence, 0, static_cast<size_t>(presence_bytes(item.count)));
    for (int64_t i = 0; i < item.count; ++i) {
      int64_t plus = 0, votes = 0;
      for (size_t v = 0; v < item.ballots.size(); ++v) {
        const int64_t weight = item.weights[v];
        if (weight == 0 || (!item.presence.empty() && !bit(item.presence[v], i / kSignBlock))) continue;
        votes += weight;
        if (bit(item.ballots[v], i)) plus += weight;
      }
      if (votes && 2 * plus >= votes) set(item.result, i);
      if (votes && 2 * plus == votes && item.zeros) set(item.zeros, i);
      if (votes && item.result_presence) set(item.result_presence, i / kSignBlock);
    }
  }
  void step(std::span<const StepItem>, int, bool, void*) override { none(); }
  void norms(std::span<const StepItem>, int, std::span<BlockNorms>, void*) override { none(); }
  int64_t first_nonfinite(std::span<const StepItem>, int, void*) override { return none(); }
  void decode(const CodecItem&, void*) override { none(); }
  void encode(const CodecItem&, void*) override { none(); }
  void pack_signs(std::span<const SignItem>, int, void*) override { none(); }
  void unpack_signs(std::span<const SignItem>, int, void*) override { none(); }
  void count_signs(const CountItem&, int, void*) override { none(); }
  void apply_signs(std::span<const ApplyItem>, int, void*) override { none(); }
  void feedback(std::span<const FeedbackItem>, int, void*) override { none(); }

 private:
  static bool bit(const std::byte* bits, int64_t i) { return (bits[i / 8] >> (i % 8) & std::byte{1}) != std::byte{0}; }
  static void set(std::byte* bits, int64_t i) { bits[i / 8] |= std::byte{1} << (i % 8); }
  [[noreturn]] static int64_t none() { throw std::logic_error("not for votes"); }
};

class Spoiled final : public Transport {
 public:
  Spoiled(int size, const uint8_t* data, size_t bytes) : size_(size), data_(data), bytes_(bytes) {}
  int rank() const override { return 0; }
  int size() const override { return size_; }
  void all_gather(const std::byte* send, std::byte* receive, int64_t bytes) override {
    for (int rank = 0; rank < size_; ++rank) arrive(rank, send, receive + rank * bytes, bytes);
  }
  void all_to_all(const std::byte* send, std::byte* receive, int64_t bytes) override {
    for (int rank = 0; rank < size_; ++rank) arrive(rank, send, receive + rank * bytes, bytes);
  }

 private:
  uint8_t next() {
    if (bytes_ == 0) return 0;
    --bytes_;
    return *data_++;
  }
  // Copies the message of this rank to itself; what others send is that, under their names, and spoiled.
  void arrive(int rank, const std::byte* sent, std::byte* message, int64_t bytes) {
    std::memcpy(message, sent, static_cast<size_t>(bytes));
    if (rank == 0) return;
    const bool record = bytes == wire::kRecordBytes;
    const auto sender = static_cast<int32_t>(rank);
    const size_t at = record ? offsetof(wire::Prefix, rank) : offsetof(wire::Header, sender);
    if (static_cast<size_t>(bytes) >= sizeof(wire::Header)) std::memcpy(message + at, &sender, sizeof sender);
    const uint8_t how = next();
    for (int change = how & 7; change > 0; --change) {
      const int64_t place = (next() | next() << 8) % bytes;
      message[place] = static_cast<std::byte>(static_cast<uint8_t>(message[place]) + next());
    }
    if (record && !(how & 128)) wire::seal_record(message);
    if (!record && !(how & 128)) {
      wire::Header header;
      std::memcpy(&header, message, sizeof header);
      wire::seal_message(header, message, bytes - wire::kHeaderBytes);
    }
  }

  int size_;
  const uint8_t* data_;
  size_t bytes_;
};

void call(const uint8_t* data, size_t size) {
  const int ranks = 2 + data[0] % 4;
  const int64_t count = data[1] < 240 ? data[1] : data[1] * 9;
  const bool presence = data[2] & 1, one_phase = data[2] & 2, commit = data[2] & 4, ties = data[2] & 8;
  Counter backend;
  Channel channel(std::make_shared<Spoiled>(ranks, data + 3, size - 3), nullptr);
  Scratches scratch;
  const auto bytes = static_cast<size_t>(sign_bytes(count) + 1);
  std::vector<std::byte> bits(bytes, std::byte{0x5a}), present(bytes, std::byte{0xff});
  std::vector<std::byte> result(bytes), result_presence(bytes), zeros(bytes);
  SignBallot ballot;
  ballot.count = count, ballot.bits = bits.data(), ballot.presence = presence ? present.data() : nullptr;
  SignResult to;
  to.bits = result.data(), to.presence = presence ? result_presence.data() : nullptr;
  to.zeros = ties ? zeros.data() : nullptr;
  SignOutcome outcome;
  const ExchangeCall with{channel, backend, scratch, ballot,  to, nullptr, ties ? TieRule::kZero : TieRule::kHash,
                          0,       1,       1,       &outcome};
  const std::unique_ptr<Exchange> exchange = one_phase ? make_one_phase(with) : make_two_phase(with);
  exchange->prepare();
  wire::Announcement mine;
  mine.count = count, mine.weight = 1, mine.has_presence = presence, mine.commit = commit;
  mine.ties = static_cast<int32_t>(with.ties);
  mine.algorithm = static_cast<int32_t>(one_phase ? SignAlgorithm::kOnePhase : SignAlgorithm::kTwoPhase);
  const Agreement agreed = announce(channel, mine);
  if (!agreed.nonfinite.empty() || !agreed.failed.empty()) return;
  Found found;
  join(&found, agreed, exchange->run(agreed));
  for (const auto& each : outcome.rejected)
    if (each.sender < 0 || each.sender >= ranks || each.owner >= ranks) __builtin_trap();
  confirm(channel, agreed, found);
  exchange->deliver();
  if (result.back() != std::byte{0}) __builtin_trap();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < 3) return 0;
  try {
    call(data, size);
  } catch (const Error&) {
  }
  return 0;
}
