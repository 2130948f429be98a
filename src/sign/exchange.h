// The payload rounds of a call: how ballots reach those who count them, and how results come back. One class for each
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

// Memory that is kept from call to call, with any contents. need() may move it and lose them. If it
// throws, what there was is still there.
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

// The state behind a SignResidual, twice: as it is, and as the mean under way would leave it. The exchange fills `next`
// and swaps the two only when the mean is applied. Used by the thread of the collective's call.
struct ResidualState {
  int codec = 0;
  int64_t total = 0;  // signs of the whole
  int rank = 0, size = 1;
  int64_t first = 0, count = 0;  // the shard
  struct Values {
    std::vector<std::byte> codes;
    std::vector<float> scales;  // empty if the codec has none
  } now, next;

  float* scales(Values& of) { return of.scales.empty() ? nullptr : of.scales.data(); }
};

struct SignResidual::Impl : ResidualState {};

// One call, as an exchange sees it. Everything is borrowed from the collective and its caller.
struct ExchangeCall {
  Channel& channel;
  Backend& backend;
  Scratches& scratch;
  const SignBallot& ballot;
  const SignResult& result;
  ResidualState* residual = nullptr;  // for a mean; nullptr: a vote
  TieRule ties = TieRule::kHash;
  uint64_t seed = 0;
  uint32_t weight = 1;
  int threads = 1;
  SignOutcome* outcome = nullptr;
};

// The calls come in this order, in the collective's thread.
class Exchange {
 public:
  virtual ~Exchange() = default;
  // Allocates all that run() needs, knowing this rank's ballot alone. Throws std::bad_alloc; communicates nothing.
  virtual void prepare() = 0;
  // Sends this rank's ballots behind its announcement, before the others' arrive (Agreement::with_ballots).
  // Fills records[size * wire::kRecordBytes] with the announcements of all. Of votes in two phases on one level. Throws
  // TransportError.
  virtual void send_early(const wire::Announcement& mine, std::byte* records);
  // Takes the rounds. Afterwards the result is in scratch memory, and the ballots left out are in the outcome. Throws
  // TransportError, and CollectiveError on all ranks alike; what fails on this rank alone is in Found instead, so that
  // the others hear of it.
  virtual Found run(const Agreement& agreed) = 0;
  // Copies the result to the caller, and for a mean replaces the residual. Cannot fail.
  virtual void deliver() = 0;
};

// The rounds of a call around an exchange of the caller's, for payloads that are not in host memory. Pointers of ballot
// and result say what there is, and are not followed; of the residual only its format and shard are looked at, nullptr:
// a vote. Errors as SignCollective's.
struct OwnExchange {
  static SignOutcome call(SignCollective& collective, const SignBallot& ballot, const SignResult& result,
                          ResidualState* residual, Exchange& exchange);
};

std::unique_ptr<Exchange> make_one_phase(const ExchangeCall& call);
// On one level or two, as the channel has; a mean where the call has a residual.
std::unique_ptr<Exchange> make_two_phase(const ExchangeCall& call);

// Adds up the seconds between its calls.
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
