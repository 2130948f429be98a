// Data-parallel training by signs: W processes send one bit per value, and all get the same exact weighted majority
// (SignCollective::vote), or the mean of signs with scales under error feedback (SignCollective::mean). A process sends
// 2 (n / 8) (W - 1) / W bytes for n values, over any Transport of two calls.
//
// Bits: sign i is bit i % 8 of byte i / 8, 1 for +. Presence: one bit for 64 signs, 0 where a rank has no say.
//
// A call either gives the same bits to all ranks, or tells all ranks that nothing was applied. Its rounds:
//   - announce: all_gather of 128 bytes, what each rank is about to vote on. Before anything else is sent, all ranks
//     learn which ranks differ or must not proceed.
//   - payload, two phases: all_to_all of ballots, each rank votes on its shard, all_gather of the shards' results. One
//     phase: all_gather of whole ballots, each rank votes on all.
//   - confirm: all_gather of 128 bytes, whether each rank holds the whole result, and its checksum.
//   - commit: all_gather of 128 bytes, what each rank saw in the confirm round, so that one damaged message, or one
//     damaged rank, cannot make some ranks apply what others do not (SignCollectiveOptions::commit).
// A two-phase vote with the same shape as the last applied one merges the first two rounds: announcements travel in
// front of ballots, unless a ballot has `prepare`. docs/project/votes.md gives the conditions. All ranks make new
// collectives together.
// A vote in parts (SignBallot::part, more) runs the first two rounds for each part, and the last two once, after the
// last part, for all parts. Until the last part's call returns with SignOutcome::applied, the results of earlier parts
// are provisional. If it is not applied, or any of the calls throws, the results of all parts are void, on all ranks.
// The bits equal the result of one vote on everything.
// No protocol can solve one case: if a process dies or a connection breaks in the last round, the others cannot know
// what each of them saw. Some may have applied the step while others throw TransportError. Their step numbers then
// differ, and the first announce after a restart refuses, naming both.
//
// Threads: one thread at a time uses a collective, and all ranks make the same calls in the same order. Calls block
// until all ranks have joined. There are no streams: everything is in host memory.
//
// Errors: a call throws CollectiveError on all ranks alike, TransportError if the transport failed, Error
// (kInvalidArgument) on the one rank whose arguments are wrong, and std::bad_alloc. Memory for results is written only
// if the call returns with SignOutcome::applied; in a vote in parts, if every call does.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "lowtide/error.h"
#include "lowtide/export.h"
#include "lowtide/tensor.h"

namespace lowtide {

// The transport failed in a call on this rank (kIo). Ranks may now be in different calls, so every collective over this
// transport refuses all later calls: make a new transport and new collectives.
class LT_API TransportError : public Error {
 public:
  explicit TransportError(const std::string& message, std::vector<int> ranks = {}, int os_error = 0)
      : Error(ErrorKind::kIo, message, os_error), ranks_(std::move(ranks)) {}
  // The ranks that did not answer, ascending; empty if the transport does not know them.
  const std::vector<int>& ranks() const noexcept { return ranks_; }

 private:
  std::vector<int> ranks_;
};

// All ranks refused or undid the call. Every rank throws this, with the same text if all saw the same messages. Nothing
// was applied, and the collective stays usable.
class LT_API CollectiveError : public Error {
 public:
  enum class Cause {
    kDisagreement,  // ranks made different calls (kInvalidArgument)
    kDigest,        // ranks differ in SignBallot::digest (kInvalidArgument)
    kDamage,        // messages were damaged, or no ballot was left; the same call may be repeated (kIo)
    kRankFailed     // a rank could not take part: out of memory, or its prepare() said so (kIo)
  };
  CollectiveError(Cause cause, const std::string& message, std::vector<int> ranks)
      : Error(cause <= Cause::kDigest ? ErrorKind::kInvalidArgument : ErrorKind::kIo, message),
        cause_(cause),
        ranks_(std::move(ranks)) {}
  Cause cause() const noexcept { return cause_; }
  // The ranks that the text names as the cause, ascending.
  const std::vector<int>& ranks() const noexcept { return ranks_; }

 private:
  Cause cause_;
  std::vector<int> ranks_;
};

// Carries messages between ranks; users implement it. All ranks make the same calls in the same order with the same
// sizes. A call blocks until its messages have arrived. It throws on failure and on a timeout, which every transport
// should have: TransportError, or anything else, which then passes through the collective's call. Send and receive
// buffers never overlap; both belong to the collective.
class LT_API Transport {
 public:
  virtual ~Transport();
  virtual int rank() const = 0;
  virtual int size() const = 0;
  // receive[r * bytes_each ...] of rank d = send[d * bytes_each ...] of rank r. Both hold size() * bytes_each bytes.
  virtual void all_to_all(const std::byte* send, std::byte* receive, int64_t bytes_each) = 0;
  // receive[r * bytes ...] of every rank = send of rank r. send holds `bytes`, receive size() * bytes.
  virtual void all_gather(const std::byte* send, std::byte* receive, int64_t bytes) = 0;
};

// A transport made of two functions, which it owns. They are called in the thread of the collective's call.
class LT_API CallbackTransport final : public Transport {
 public:
  using Call = std::function<void(const std::byte* send, std::byte* receive, int64_t bytes)>;
  // Throws kInvalidArgument for an impossible rank or size, or a missing function.
  CallbackTransport(int rank, int size, Call all_to_all, Call all_gather);
  int rank() const override { return rank_; }
  int size() const override { return size_; }
  void all_to_all(const std::byte* send, std::byte* receive, int64_t bytes_each) override;
  void all_gather(const std::byte* send, std::byte* receive, int64_t bytes) override;

 private:
  int rank_, size_;
  Call all_to_all_, all_gather_;
};

// Threads of one process as ranks: for tests, and for C++ programs that train on several devices with one thread each.
class LT_API ThreadGroup {
 public:
  // A call that the others do not join within `timeout` throws TransportError with the missing ranks. Throws
  // kInvalidArgument unless size and timeout are above 0.
  ThreadGroup(int size, std::chrono::milliseconds timeout);
  ~ThreadGroup();
  ThreadGroup(const ThreadGroup&) = delete;
  ThreadGroup& operator=(const ThreadGroup&) = delete;

  // The transport of one rank, for one thread. It shares the group's data and may outlive the group.
  std::shared_ptr<Transport> transport(int rank);

  // For tests: a dead rank never answers again. Its own calls throw at once; the others' calls time out. It dies in its
  // call number `call` (from 0), before it sends anything or, with `after_sending`, instead of receiving.
  void kill(int rank, int64_t call, bool after_sending = false);
  // For tests: `hook` sees every message in transit, one at a time in the receiver's thread, and may change it.
  struct Message {
    int sender, receiver;
    int64_t call;  // number of the call on both ranks, from 0
    bool gather;   // all_gather; otherwise all_to_all
    std::byte* data;
    int64_t bytes;  // may be lowered: the missing bytes arrive as zeros
  };
  void on_message(std::function<void(Message&)> hook);

 private:
  struct Shared;
  std::shared_ptr<Shared> shared_;
};

enum class SignAlgorithm : int32_t {
  kAuto = 0,      // the faster of the two by the cost model
  kOnePhase = 1,  // (n / 8) (W - 1) bytes, one latency less; every rank sees all ballots
  kTwoPhase = 2,  // 2 (n / 8) (W - 1) / W bytes
};

// The same on all ranks, except weight, threads and cpu_target.
struct SignCollectiveOptions {
  // Results depend on these:
  // The sign that wins if votes are equal: "hash" (a fair bit of seed, step and index, the same on all ranks), "plus",
  // "minus", "zero" (needs SignResult::zeros), "previous" (needs SignBallot::previous).
  std::string ties = "hash";
  uint64_t seed = 0;    // for "hash"
  uint32_t weight = 1;  // votes of this rank, unless a ballot says otherwise; all votes of a call add up to less than
                        // 2^31
  // Only speed depends on these:
  SignAlgorithm algorithm = SignAlgorithm::kAuto;
  // The cost model of kAuto: seconds that even the smallest call takes, and bytes per second that a rank sends. 0: the
  // first vote measures them with extra calls, and all ranks agree on the slowest.
  double latency_s = 0, bytes_per_s = 0;
  int threads = 0;              // for the vote, the caller included; 0: one per core that this process may run on
  std::string cpu_target = "";  // "": best for this CPU
  // Safety depends on this:
  bool commit = true;  // false saves a latency, but one damaged confirm message can then make ranks disagree
};

// Bytes of the bits of n signs, bytes of their presence, and number of their scales (bfloat16, one per 1024 signs).
constexpr int64_t sign_bits_bytes(int64_t signs) { return (signs + 7) / 8; }
constexpr int64_t sign_presence_bytes(int64_t signs) { return (signs + 511) / 512; }
constexpr int64_t sign_scales(int64_t signs) { return (signs + 1023) / 1024; }

// A rank's part of one call. All pointers are borrowed for the call and may point into the result. "Compared": the
// announce round refuses ranks that differ in the field.
struct SignBallot {
  int64_t count = 0;                    // signs; compared
  const std::byte* bits = nullptr;      // [sign_bits_bytes(count)]
  const std::byte* presence = nullptr;  // [sign_presence_bytes(count)], or nullptr on all ranks: all present
  const uint16_t* scales = nullptr;     // for a mean: bfloat16 [sign_scales(count)], finite and not negative
  const std::byte* previous = nullptr;  // ties "previous": the earlier result, the same on all ranks
  DType dtype = DType::kF32;            // element type of the values behind the signs; compared
  uint64_t step = 0, digest = 0;        // compared; digest: a hash of whatever else must agree
  uint64_t first_index = 0;             // index of sign 0 in the whole, for "hash"; a multiple of 1024; compared
  int64_t weight = -1;                  // votes; 0: none, and the bits are not read; -1: the collective's weight
  bool nonfinite = false;               // this rank has a NaN or an infinity: nothing is applied anywhere
  bool failed = false;                  // this rank cannot take part: nothing is applied anywhere; pointers are unused
  // Called once, in the thread of the call, after all ranks have announced that they proceed and before any pointer is
  // read: for ballots with side effects, which must not happen in vain. False: this rank cannot take part after all;
  // the call runs to its end, and all ranks throw CollectiveError. The same happens if it throws, but this rank then
  // rethrows the exception. If more parts follow, the rank announces its failure with the next part.
  std::function<bool()> prepare = nullptr;
  // A vote in parts: how many of its parts came before this one (0: it begins, and an unfinished vote is forgotten),
  // and whether another follows, in the next call of vote(). Both compared. All parts have the same step; each may have
  // any number of signs, including none. mean() can only be the last part.
  uint32_t part = 0;
  bool more = false;
};

// Memory for the result. The caller owns it; written only if the result is applied (for a part: when the call returns).
struct SignResult {
  std::byte* bits = nullptr;      // [sign_bits_bytes(count)]; bits after the last sign become 0
  std::byte* presence = nullptr;  // if ballots have presence: [sign_presence_bytes(count)], 1 for blocks in which any
                                  // rank had a say
  std::byte* zeros = nullptr;     // ties "zero": laid out like bits, 1 for equal votes
  uint16_t* scales = nullptr;     // for a mean: bfloat16 [sign_scales(count)]
};

// A ballot that was left out: the signs in the shard of rank `owner` were voted on without it. owner -1: all signs.
struct RejectedBallot {
  int sender = 0, owner = -1;
  std::string reason;
};

// The outcome of a call; the same on all ranks, except bytes and seconds.
struct SignOutcome {
  bool applied = false;                  // for a part before the last: nothing has stopped the vote so far
  std::vector<int> nonfinite, failed;    // the ranks that reported this, ascending; if any, nothing was applied
  std::vector<RejectedBallot> rejected;  // ballots without which the vote was applied
  SignAlgorithm algorithm = SignAlgorithm::kTwoPhase;
  // Bytes handed to the transport for other ranks, and received from them: messages of the payload rounds with their
  // headers, and records of the other rounds.
  int64_t payload_sent = 0, payload_received = 0, control_sent = 0, control_received = 0;
  struct Seconds {
    double announce = 0, ballots = 0, vote = 0, results = 0, confirm = 0, measure = 0;
  } seconds;
};

// The part of a rank's shard that a mean rounds away; the next mean adds it. Each rank has one for each quantity that
// is averaged. The caller owns it; it starts at zero, and a mean that is not applied leaves it unchanged. One thread at
// a time.
class LT_API SignResidual {
 public:
  // For the shard of `rank` among `size` ranks of `count` signs. state: "fp32", "bf16" or "dynamic8". Throws
  // kInvalidArgument, std::bad_alloc.
  SignResidual(int64_t count, int rank, int size, const std::string& state = "bf16");
  ~SignResidual();
  SignResidual(SignResidual&&) noexcept;
  SignResidual& operator=(SignResidual&&) noexcept;

  int64_t first() const;  // the first sign of the shard
  int64_t count() const;  // signs of the shard; 0 for ranks without any
  // Bytes of the stored form (codes, then scales); bytes of memory that the object holds.
  int64_t bytes() const;
  int64_t allocated_bytes() const;
  // Copies the residual as stored, bytes() of it, to or from the caller's memory: for checkpoints.
  void read(std::byte* out) const;
  void replace(const std::byte* in);
  // Copies the residual as count() float32 values: for a different number of ranks. replace_values encodes, which
  // rounds if the format does.
  void read_values(float* out) const;
  void replace_values(const float* in);

 private:
  friend class SignCollective;
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

class LT_API SignCollective {
 public:
  // Shares ownership of the transport. Communicates nothing. Throws kInvalidArgument for inconsistent options.
  SignCollective(std::shared_ptr<Transport> transport, const SignCollectiveOptions& options = {});
  // The same votes for processes on nodes: `inside` connects the processes of a node, `between` the processes with the
  // same rank inside, one on each node. All nodes have the same size; rank = between->rank() * inside->size() +
  // inside->rank(). Counts of votes in bit planes travel between nodes instead of ballots: log2(votes of a node) (n /
  // 8) / inside->size() bytes. Such a collective has no mean().
  SignCollective(std::shared_ptr<Transport> inside, std::shared_ptr<Transport> between,
                 const SignCollectiveOptions& options = {});
  ~SignCollective();
  SignCollective(SignCollective&&) noexcept;
  SignCollective& operator=(SignCollective&&) noexcept;

  int rank() const;
  int size() const;

  // Votes for the majority. An invalid ballot or result is announced as failed, and throws kInvalidArgument on this
  // rank only; the others get an outcome that names the rank. A single rank communicates nothing.
  [[nodiscard]] SignOutcome vote(const SignBallot& ballot, const SignResult& result);

  // Computes the weighted mean of sign times scale, plus the residual, as signs and scales again; the remainder becomes
  // the new residual. Errors as for vote(). Always in two phases.
  [[nodiscard]] SignOutcome mean(const SignBallot& ballot, const SignResult& result, SignResidual& residual);

  // The cost model of kAuto, as given or measured; 0 before the first measurement.
  double latency_s() const;
  double bytes_per_s() const;

 private:
  friend struct OwnExchange;  // internal, for payloads in device memory
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace lowtide
