// The payload rounds of a call: how ballots reach the ranks that count them, and how results return. One class per
// algorithm, made for one call and destroyed after it.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <vector>

#include "backend/backend.h"
#include "lowtide/sign_collective.h"
#include "sign/channel.h"
#include "sign/rounds.h"

namespace lowtide {

// Memory that is kept from call to call. Its contents are arbitrary: need() may move the memory and lose them. If
// need() throws, the old memory is still there.
class Scratch {
 public:
  std::byte* need(int64_t bytes) {
    if (bytes > bytes_) {
      data_ = std::make_unique_for_overwrite<std::byte[]>(static_cast<size_t>(bytes));
      bytes_ = bytes;
    }
    return data_.get();
  }

 private:
  std::unique_ptr<std::byte[]> data_;
  int64_t bytes_ = 0;
};

struct Scratches {
  Scratch first, second, third;
};

// Two copies of a SignResidual's state: the current state and the state after the mean in progress. The exchange fills
// `next`, and swaps the two copies only when the mean is applied. Used by the thread that calls the collective.
struct ResidualState {
  int codec = 0;
  int64_t total = 0;  // signs of the whole tensor
  int rank = 0, size = 1;
  int64_t first = 0, count = 0;  // the shard
  struct Values {
    std::vector<std::byte> codes;
    std::vector<float> scales;  // empty if the codec has none
  } now, next;

  float* scales(Values& of) { return of.scales.empty() ? nullptr : of.scales.data(); }
};

struct SignResidual::Impl : ResidualState {};

// The input of an exchange. Everything is borrowed from the collective and its caller.
struct ExchangeCall {
  Channel& channel;
  Backend& backend;
  Scratches& scratch;
  const SignBallot& ballot;
  const SignResult& result;
  ResidualState* residual = nullptr;  // for a mean; nullptr for a vote
  TieRule ties = TieRule::kHash;
  uint64_t seed = 0;
  uint32_t weight = 1;
  int threads = 1;
  SignOutcome* outcome = nullptr;
};

// The functions must be called in the order of declaration, in the collective's thread.
class Exchange {
 public:
  virtual ~Exchange() = default;
  // Allocates everything for run(), knowing only this rank's ballot. Throws std::bad_alloc. Does not communicate.
  virtual void prepare() = 0;
  // Sends this rank's ballots together with its announcement, before the other ranks' announcements arrive
  // (Agreement::with_ballots). Fills records[size * wire::kRecordBytes] with all announcements. Only for two-phase
  // votes on one level. Throws TransportError.
  virtual void send_early(const wire::Announcement& mine, std::byte* records);
  // Runs the rounds. Afterwards the result is in scratch memory, and the outcome lists the ballots left out. Throws
  // TransportError, and CollectiveError on all ranks alike; a failure of this rank alone is returned in Found, so that
  // the others learn of it.
  virtual Found run(const Agreement& agreed) = 0;
  // Copies the result to the caller and, for a mean, replaces the residual. Cannot fail.
  virtual void deliver() = 0;
};

// Runs the rounds of a call around the caller's own exchange, for payloads that are not in host memory. The pointers in
// `ballot` and `result` only show which arrays exist and are not dereferenced. `residual` is nullptr for a vote;
// otherwise only its format and shard are read. Throws like SignCollective.
struct OwnExchange {
  static SignOutcome call(SignCollective& collective, const SignBallot& ballot, const SignResult& result,
                          ResidualState* residual, Exchange& exchange);
};

std::unique_ptr<Exchange> make_one_phase(const ExchangeCall& call);
// Uses one level or two, like the channel. Computes a mean if the call has a residual.
std::unique_ptr<Exchange> make_two_phase(const ExchangeCall& call);

// Measures the seconds between its calls.
class Stopwatch {
 public:
  void lap(double* seconds) {
    const auto now = std::chrono::steady_clock::now();
    *seconds += std::chrono::duration<double>(now - last_).count();
    last_ = now;
  }

 private:
  std::chrono::steady_clock::time_point last_ = std::chrono::steady_clock::now();
};

}  // namespace lowtide
