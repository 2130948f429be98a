// Data-parallel training by signs: W processes send one bit per value, and all get the same exact weighted majority of
// them (SignCollective::vote), or the mean of signs with scales under error feedback (SignCollective::mean). It sends
// 2 (n / 8) (W - 1) / W bytes per process, whatever carries them: two calls of a Transport.
//
// Bits: sign i is bit i % 8 of byte i / 8, 1 for +. Presence: one bit for 64 signs, 0 where a rank has no say.
//
// A call either gives the same bits to all ranks, or says on all of them that nothing was applied. Its rounds:
//   1 announce  all_gather of 128 bytes: what each rank is about to vote on. Ranks that differ, or must not go on, are
//               found before anything else is sent, by all alike.
//   2 payload   two_phase: all_to_all of ballots, each rank votes on its shard; all_gather of the shards' results.
//               one_phase: all_gather of whole ballots, each rank votes on all.
//   3 confirm   all_gather of 128 bytes: whether each rank holds the whole result, and its checksum.
//   4 settle    the same of what each rank saw in 3, so that one damaged message, or one damaged rank, cannot have some
//               apply what others do not (SignCollectiveOptions::settle).
// What cannot be had: a process that dies, or a connection that breaks, in the last round leaves the others unsure of
// each other: some may have applied the step where others throw TransportError. Their step numbers then differ, and the
// first announce after a restart refuses, naming both.
//
// Threads: a collective is used by one thread at a time; all ranks make the same calls in the same order. Calls block.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "lowtide/error.h"
#include "lowtide/export.h"
#include "lowtide/tensor.h"

namespace lowtide {

// A call over a transport that did not end well on this rank: kIo. Ranks may then be in different calls, so collectives
// over this transport refuse all later ones: make new ones.
class LT_API TransportError : public Error {
 public:
  explicit TransportError(const std::string& message, std::vector<int> ranks = {}, int os_error = 0)
      : Error(ErrorKind::kIo, message, os_error), ranks_(std::move(ranks)) {}
  const std::vector<int>& ranks() const noexcept { return ranks_; }  // that did not answer, if known; ascending

 private:
  std::vector<int> ranks_;
};

// A call that all ranks refuse or undo, with the same text on each (as far as they saw the same messages); nothing was
// applied and the collective stays usable. kInvalidArgument: ranks do not agree on what to do. kIo: messages were
// damaged, or no ballot was left; the same call may be made again.
class LT_API CollectiveError : public Error {
 public:
  CollectiveError(ErrorKind kind, const std::string& message, std::vector<int> ranks)
      : Error(kind, message), ranks_(std::move(ranks)) {}
  const std::vector<int>& ranks() const noexcept { return ranks_; }  // that the text names as the cause; ascending

 private:
  std::vector<int> ranks_;
};

// What carries messages. Both calls block until done, are made by all ranks in the same order with the same sizes, and
// throw (TransportError, or whatever they like) on failure or after a timeout, which every transport should have. Send
// and receive never overlap.
class LT_API Transport {
 public:
  virtual ~Transport();
  virtual int rank() const = 0;
  virtual int size() const = 0;
  // receive[r * bytes_each ...] of rank d = send[d * bytes_each ...] of rank r. Both [size()] times bytes_each.
  virtual void all_to_all(const std::byte* send, std::byte* receive, int64_t bytes_each) = 0;
  // receive[r * bytes ...] of every rank = send of rank r. send: bytes; receive: [size()] times bytes.
  virtual void all_gather(const std::byte* send, std::byte* receive, int64_t bytes) = 0;
};

// Two functions, as a transport. What they throw passes through the collective's call.
class LT_API CallbackTransport final : public Transport {
 public:
  using Call = std::function<void(const std::byte* send, std::byte* receive, int64_t bytes)>;
  CallbackTransport(int rank, int size, Call all_to_all, Call all_gather);
  int rank() const override { return rank_; }
  int size() const override { return size_; }
  void all_to_all(const std::byte* send, std::byte* receive, int64_t bytes_each) override;
  void all_gather(const std::byte* send, std::byte* receive, int64_t bytes) override;

 private:
  int rank_, size_;
  Call all_to_all_, all_gather_;
};

// Threads of one process as ranks: for tests and for C++ programs that train on several devices with a thread for each.
class LT_API ThreadGroup {
 public:
  // timeout: of each call, after which it throws TransportError with the ranks that have not come.
  ThreadGroup(int size, std::chrono::milliseconds timeout);
  ~ThreadGroup();
  ThreadGroup(const ThreadGroup&) = delete;
  ThreadGroup& operator=(const ThreadGroup&) = delete;

  // Of one rank; it shares what it needs with the group, and may outlive it.
  std::shared_ptr<Transport> transport(int rank);

  // For tests. A dead rank never answers again: its own calls throw at once, the others' time out. From its call number
  // `call` on (0: its first), before it hands over anything or, with `after_sending`, instead of receiving.
  void kill(int rank, int64_t call, bool after_sending = false);
  // For tests: sees every message on its way, and may change it; called in the receiver's thread, for one at a time.
  struct Message {
    int sender, receiver;
    int64_t call;  // of both ranks, from 0
    bool gather;   // or all_to_all
    std::byte* data;
    int64_t bytes;  // may be set lower: what was cut off arrives as zeros
  };
  void on_message(std::function<void(Message&)> hook);

 private:
  struct Shared;
  std::shared_ptr<Shared> shared_;
};

enum class SignAlgorithm : int32_t {
  kAuto = 0,      // the faster by the cost model: the other for few signs or ranks
  kOnePhase = 1,  // (n / 8) (W - 1) bytes, one latency less; every rank sees all ballots
  kTwoPhase = 2   // 2 (n / 8) (W - 1) / W bytes
};

// The same on all ranks but for threads, and for weight; checked by announce.
struct SignCollectiveOptions {
  std::string ties = "hash";  // "hash", "plus", "minus", "zero", "previous": what signs with as many + as - become
  uint64_t seed = 0;          // of "hash"
  SignAlgorithm algorithm = SignAlgorithm::kAuto;
  // Of the transport, for kAuto: seconds that a call takes however small, and bytes per second that a rank sends. 0:
  // measured by the first vote, by calls of its own, and agreed on by all ranks (the slowest counts).
  double latency_s = 0, bytes_per_s = 0;
  bool settle = true;           // false saves a latency
  uint32_t weight = 1;          // votes of this rank, where a ballot says none; their sum must be below 2^31
  int threads = 0;              // of the vote; 0 = one per core
  std::string cpu_target = "";  // "" = best for this CPU
};

// Bytes of n signs, of their presence, and of their scales of error feedback (bfloat16, one for 1024 signs).
constexpr int64_t sign_bits_bytes(int64_t signs) { return (signs + 7) / 8; }
constexpr int64_t sign_presence_bytes(int64_t signs) { return (signs + 511) / 512; }
constexpr int64_t sign_scales(int64_t signs) { return (signs + 1023) / 1024; }

// What one rank brings to one call. Borrowed for the call; its memory may be that of the result.
struct SignBallot {
  int64_t count = 0;                    // signs
  const std::byte* bits = nullptr;      // [sign_bits_bytes(count)]
  const std::byte* presence = nullptr;  // [sign_presence_bytes(count)], or nullptr on all ranks: all present
  const uint16_t* scales = nullptr;     // mean: bfloat16 [sign_scales(count)], finite and not negative
  const std::byte* previous = nullptr;  // ties "previous": the earlier result, the same on all ranks; may be the result
  DType dtype = DType::kF32;            // of what the signs are of: compared
  uint64_t step = 0, digest = 0;        // compared; digest: whatever else must agree (a hash of it)
  uint64_t first_index = 0;             // compared; of sign 0 in the whole, for "hash"; a multiple of 1024
  int64_t weight = -1;                  // votes, 0 for none (its bits are not looked at); -1: the collective's
  bool nonfinite = false;               // this rank has a NaN or an infinity: nothing is applied anywhere
  bool failed = false;                  // this rank cannot take part: nothing is applied anywhere; pointers unused
  // Called once when all ranks have announced that they go on, and before anything that pointers point to is read: for
  // a ballot whose making changes something that must not change in vain. False: this rank cannot after all; the call
  // goes on to its end, where all ranks throw CollectiveError. So it does if this throws, which then passes through.
  std::function<bool()> prepare = nullptr;
};

// Where the result goes: written only when it is applied. The caller's memory.
struct SignResult {
  std::byte* bits = nullptr;      // [sign_bits_bytes(count)], zeros behind the last sign
  std::byte* presence = nullptr;  // with presence: [sign_presence_bytes(count)], 1 where someone had a say
  std::byte* zeros = nullptr;     // ties "zero": as bits, 1 where votes were equal
  uint16_t* scales = nullptr;     // mean: bfloat16 [sign_scales(count)]
};

// A ballot that was left out, in part: the signs of the shard of `owner` are voted on without it. owner -1: all signs.
struct RejectedBallot {
  int sender = 0, owner = -1;
  std::string reason;
};

// The same on all ranks, but for bytes and seconds.
struct SignOutcome {
  bool applied = false;
  std::vector<int> nonfinite, failed;    // ranks that said so; applied is then false
  std::vector<RejectedBallot> rejected;  // of a vote that was applied without them
  SignAlgorithm algorithm = SignAlgorithm::kTwoPhase;
  // Handed to the transport for other ranks, and got from them: messages of the payload rounds with their headers, and
  // those of the others.
  int64_t payload_sent = 0, payload_received = 0, control_sent = 0, control_received = 0;
  struct Seconds {
    double announce = 0, ballots = 0, vote = 0, results = 0, confirm = 0, measure = 0;
  } seconds;
};

// What the mean leaves out of a rank's shard, added to its next mean: one for each thing that is averaged, on each
// rank. Zero at first. Owned by the caller; a mean that is not applied leaves it as it was.
class LT_API SignResidual {
 public:
  // Of the shard of `rank` among `size` of `count` signs. state: "fp32", "bf16" or "dynamic8".
  SignResidual(int64_t count, int rank, int size, const std::string& state = "bf16");
  ~SignResidual();
  SignResidual(SignResidual&&) noexcept;
  SignResidual& operator=(SignResidual&&) noexcept;

  int64_t first() const;  // sign that the shard begins with
  int64_t count() const;  // signs of the shard; 0 for ranks without any
  // As stored, for checkpoints: codes and then scales, bytes() of them; and how much memory it takes in all.
  int64_t bytes() const;
  int64_t allocated_bytes() const;
  void read(std::byte* out) const;
  void replace(const std::byte* in);
  // As numbers, [count()]: for another number of ranks. Replacing encodes them anew, which dynamic8 rounds.
  void read_values(float* out) const;
  void replace_values(const float* in);

 private:
  friend class SignCollective;
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

class LT_API SignCollective {
 public:
  // Throws kInvalidArgument for options that make no sense. Communicates nothing.
  SignCollective(std::shared_ptr<Transport> transport, const SignCollectiveOptions& options = {});
  // The same votes by processes on nodes: `inside` connects those of a node, `between` those with the same rank inside,
  // one of each node. Each node has as many; rank = between->rank() * inside->size() + inside->rank(). Between nodes go
  // counts of votes in bit planes instead of ballots: log2(votes of a node) (n / 8) / inside->size() bytes. Has no
  // mean.
  SignCollective(std::shared_ptr<Transport> inside, std::shared_ptr<Transport> between,
                 const SignCollectiveOptions& options = {});
  ~SignCollective();
  SignCollective(SignCollective&&) noexcept;
  SignCollective& operator=(SignCollective&&) noexcept;

  int rank() const;
  int size() const;

  // The majority. Throws CollectiveError, TransportError and what the transport throws. A ballot that is wrong in
  // itself is announced as failed, and throws kInvalidArgument on this rank only. One rank alone communicates nothing.
  [[nodiscard]] SignOutcome vote(const SignBallot& ballot, const SignResult& result);

  // The weighted mean of sign times scale, plus the residual, as signs and scales again. Always in two phases.
  [[nodiscard]] SignOutcome mean(const SignBallot& ballot, const SignResult& result, SignResidual& residual);

  // What kAuto goes by: as given or as measured; 0 before.
  double latency_s() const;
  double bytes_per_s() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace lowtide
