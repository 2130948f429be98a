// Implements SignCollective, which checks its caller's input and takes a call through its rounds.
#include <cmath>
#include <exception>
#include <optional>
#include <utility>
#include <vector>

#include "backend/cpu/cpu_backend.h"
#include "backend/signs.h"
#include "core/error.h"
#include "core/thread_pool.h"
#include "lowtide/sign_collective.h"
#include "sign/channel.h"
#include "sign/exchange.h"
#include "sign/expected.h"
#include "sign/shard_messages.h"

namespace lowtide {

static_assert(sign_bits_bytes(12345) == sign_bytes(12345) && sign_presence_bytes(12345) == presence_bytes(12345));
static_assert(sign_scales(1024) == 1 && sign_scales(1025) == 2 && kSignAlignment == 1024);

struct SignCollective::Impl {
  Impl(std::shared_ptr<Transport> inside, std::shared_ptr<Transport> between, const SignCollectiveOptions& given)
      : options(given), channel(std::move(inside), std::move(between)), ties(find_tie_rule(given.ties)) {
    LT_REQUIRE(options.algorithm >= SignAlgorithm::kAuto && options.algorithm <= SignAlgorithm::kTwoPhase,
               "got algorithm %d, wanted auto, one_phase or two_phase", static_cast<int>(options.algorithm));
    LT_REQUIRE(!channel.two_level() || options.algorithm != SignAlgorithm::kOnePhase,
               "got algorithm one_phase with ranks grouped by node, wanted auto or two_phase");
    LT_REQUIRE(std::isfinite(options.latency_s) && std::isfinite(options.bytes_per_s) && options.latency_s >= 0 &&
                   options.bytes_per_s >= 0 && (options.latency_s > 0) == (options.bytes_per_s > 0),
               "got latency_s=%g and bytes_per_s=%g, wanted both above 0, or both 0 to have them measured",
               options.latency_s, options.bytes_per_s);
    LT_REQUIRE(options.threads >= 0, "got threads=%d, wanted 0 or more", options.threads);
    check_weight(options.weight);
    cost = {options.latency_s, options.bytes_per_s};
    threads = options.threads ? options.threads : available_threads();
    backend = cpu::make_backend(options.cpu_target);
  }

  static void check_weight(int64_t weight) {
    LT_REQUIRE(weight >= 0 && weight < int64_t{1} << 31, "got a weight of %lld votes, wanted 0 to 2^31 - 1",
               ll(weight));
  }

  uint32_t weight_of(const SignBallot& ballot) const {
    return ballot.weight < 0 ? options.weight : static_cast<uint32_t>(ballot.weight);
  }

  // The earlier parts of a vote, whose results wait for the last part's rounds. Every call takes the pending vote, and
  // leaves one only if the call completes and more parts follow; any other end of a call ends the vote.
  struct Pending {
    uint32_t parts = 0;
    uint64_t step = 0;
    Found found;
    bool failed = false;         // prepare() returned false, or threw
    std::exception_ptr failure;  // the exception
  };

  void check(const SignBallot& ballot, const SignResult& result, const ResidualState* residual,
             const Pending& before) const;
  wire::Announcement announcement(const SignBallot& ballot, const ResidualState* residual) const;
  SignAlgorithm choose(const SignBallot& ballot) const;
  // `parts` is the number of earlier parts, which all ranks know. `exchange` is nullptr if this rank has failed.
  Agreement agree(uint32_t parts, wire::Announcement mine, Exchange* exchange);
  // `own` is the caller's exchange, or nullptr to use the algorithm's exchange.
  SignOutcome call(const SignBallot& ballot, const SignResult& result, ResidualState* residual,
                   Exchange* own = nullptr);

  SignCollectiveOptions options;
  Channel channel;
  TieRule ties;
  int threads = 1;
  std::unique_ptr<Backend> backend;
  Cost cost;
  Scratches scratch;
  uint64_t calls = 0;
  Pending pending;
  Expected expected;
};

void SignCollective::Impl::check(const SignBallot& ballot, const SignResult& result, const ResidualState* residual,
                                 const Pending& before) const {
  LT_REQUIRE(ballot.count >= 0 && ballot.count <= kMostSigns, "got %lld signs, wanted 0 to 2^60", ll(ballot.count));
  LT_REQUIRE(ballot.weight >= -1, "got weight=%lld, wanted a number of votes, or -1 for the collective's default",
             ll(ballot.weight));
  check_weight(weight_of(ballot));
  LT_REQUIRE(ballot.first_index % static_cast<uint64_t>(kSignAlignment) == 0,
             "got signs that begin at index %llu, wanted a multiple of %lld",
             static_cast<unsigned long long>(ballot.first_index), ll(kSignAlignment));
  LT_REQUIRE(ballot.part == before.parts, "got part %u of a vote after %u parts; part 0 begins a new vote", ballot.part,
             before.parts);
  LT_REQUIRE(ballot.part == 0 || ballot.step == before.step,
             "got a part of step %llu, wanted step %llu like the first part",
             static_cast<unsigned long long>(ballot.step), static_cast<unsigned long long>(before.step));
  if (residual) {
    LT_REQUIRE(!ballot.more,
               "got a mean with more parts to follow, wanted one part: the first would already change the residual");
    LT_REQUIRE(!channel.two_level(), "got a mean over nodes, wanted one transport");
    LT_REQUIRE(!ballot.presence, "got presence for a mean, wanted scales only");
    LT_REQUIRE(residual->total == ballot.count && residual->rank == channel.rank() && residual->size == channel.size(),
               "got the residual of %lld signs, rank %d of %d, wanted the residual of %lld signs, rank %d of %d",
               ll(residual->total), residual->rank, residual->size, ll(ballot.count), channel.rank(), channel.size());
  }
  if (ballot.count == 0) return;
  if (weight_of(ballot) && !ballot.nonfinite) {
    LT_REQUIRE(ballot.bits, "got no bits for %lld signs", ll(ballot.count));
    LT_REQUIRE(ballot.scales || !residual, "got no scales for a mean");
  }
  LT_REQUIRE(result.bits, "got no memory for the result");
  LT_REQUIRE(result.scales || !residual, "got no memory for the result's scales");
  if (residual) return;
  LT_REQUIRE(result.presence || !ballot.presence, "got no memory for the result's presence");
  LT_REQUIRE(result.zeros || ties != TieRule::kZero, "got no memory for the marks of ties that become zero");
  LT_REQUIRE(ballot.previous || ties != TieRule::kPrevious,
             "got no earlier result for ties that become the earlier sign");
}

wire::Announcement SignCollective::Impl::announcement(const SignBallot& ballot, const ResidualState* residual) const {
  wire::Announcement out;
  out.prefix.kind = residual ? wire::Kind::kMean : wire::Kind::kVote;
  out.count = ballot.count;
  out.step = ballot.step, out.digest = ballot.digest;
  out.seed = options.seed, out.first_index = ballot.first_index;
  out.sequence = calls;
  out.dtype = static_cast<int32_t>(ballot.dtype), out.ties = static_cast<int32_t>(ties);
  out.inside = channel.two_level() ? channel.inside_size() : 0;
  out.residual = residual ? residual->codec : -1;
  out.weight = weight_of(ballot);
  out.has_presence = ballot.presence != nullptr;
  out.commit = options.commit;
  out.nonfinite = ballot.nonfinite;
  out.failed = ballot.failed;
  out.part = ballot.part, out.more = ballot.more;
  out.late = static_cast<bool>(ballot.prepare);
  return out;
}

SignAlgorithm SignCollective::Impl::choose(const SignBallot& ballot) const {
  if (options.algorithm != SignAlgorithm::kAuto) return options.algorithm;
  if (channel.two_level()) return SignAlgorithm::kTwoPhase;
  const ShardLayout whole{shard_signs(ballot.count, 1), ballot.presence != nullptr};
  return faster(cost, channel.size(), whole.ballot_bytes());
}

Agreement SignCollective::Impl::agree(uint32_t parts, wire::Announcement mine, Exchange* exchange) {
  try {
    if (const ExpectedPart* const part = expected.part(parts)) {
      const bool has_ballot = exchange && !mine.nonfinite;
      const bool is_expected = mine.part == parts && mine.prefix.kind == wire::Kind::kVote && !mine.late &&
                               mine.algorithm == static_cast<int32_t>(SignAlgorithm::kTwoPhase) &&
                               mine.count == part->count && (mine.has_presence != 0) == part->presence;
      mine.apart = has_ballot && !is_expected;
      seal_announcement(channel, &mine);
      std::vector<std::byte> records(static_cast<size_t>(channel.size() * wire::kRecordBytes));
      if (has_ballot && is_expected)
        exchange->send_early(mine, records.data());
      else
        announce_alone(channel, scratch, *part, mine, records.data());
      if (std::optional<Agreement> agreed = announced_with_ballots(channel, mine, records.data()))
        return std::move(*agreed);
      mine.apart = 0;
    }
    seal_announcement(channel, &mine);
    return announce(channel, mine);
  } catch (const CollectiveError&) {
    // All ranks are here. They may differ because a measurement was damaged, so the next call measures again.
    cost = {options.latency_s, options.bytes_per_s};
    throw;
  }
}

SignOutcome SignCollective::Impl::call(const SignBallot& ballot, const SignResult& result, ResidualState* residual,
                                       Exchange* own) {
  SignOutcome outcome;
  Stopwatch watch;
  channel.reset_traffic();
  ++calls;
  Pending so_far = std::exchange(pending, {});
  const uint32_t parts = so_far.parts;
  if (ballot.part == 0) so_far = {}, expected.begin();
  if (options.algorithm == SignAlgorithm::kAuto && !own && !residual && !channel.two_level() && channel.size() > 1 &&
      !cost.known()) {
    cost = measure(channel);
    outcome.control_sent = outcome.control_received = channel.traffic().payload + channel.traffic().control;
    channel.reset_traffic();
    watch.lap(&outcome.seconds.measure);
  }
  // An error on this rank alone is announced to the others before it is thrown.
  std::exception_ptr failure;
  std::unique_ptr<Exchange> made;
  Exchange* exchange = own;
  wire::Announcement mine = announcement(ballot, residual);
  if (so_far.failed) mine.failed = 1, failure = so_far.failure;
  if (!mine.failed) try {
      check(ballot, result, residual, so_far);
      outcome.algorithm = residual || own ? SignAlgorithm::kTwoPhase : choose(ballot);
      const ExchangeCall with{channel, *backend,     scratch,           ballot,  result,  residual,
                              ties,    options.seed, weight_of(ballot), threads, &outcome};
      if (!own) {
        made = outcome.algorithm == SignAlgorithm::kOnePhase ? make_one_phase(with) : make_two_phase(with);
        exchange = made.get();
      }
      exchange->prepare();
    } catch (const std::exception&) {
      failure = std::current_exception();
      mine.failed = 1;
    }
  mine.algorithm = static_cast<int32_t>(outcome.algorithm);
  mine.late = mine.late || own;
  const Agreement agreed = agree(parts, mine, mine.failed ? nullptr : exchange);
  watch.lap(&outcome.seconds.announce);
  outcome.seconds.announce -= outcome.seconds.ballots;
  if (failure) std::rethrow_exception(failure);
  outcome.nonfinite = agreed.nonfinite, outcome.failed = agreed.failed;
  outcome.applied = agreed.nonfinite.empty() && agreed.failed.empty();
  if (outcome.applied) {  // even without signs, because a rank whose prepare() fails must be heard
    bool ready = true;
    if (ballot.prepare) try {
        ready = ballot.prepare();
      } catch (...) {
        failure = std::current_exception();
        ready = false;
      }
    Found found = exchange->run(agreed);
    if (own) reject_unannounced(agreed, &outcome);
    if (!ready) found.reason = wire::Reason::kSenderFailed, found.culprit = channel.rank();
    const bool whole = found.reason == wire::Reason::kFine;
    join(&so_far.found, agreed, found);
    watch = {};
    if (!ballot.more) try {
        confirm(channel, agreed, so_far.found);
      } catch (const CollectiveError&) {
        if (failure) std::rethrow_exception(failure);
        throw;
      }
    watch.lap(&outcome.seconds.confirm);
    expected.note(agreed, agreed.call());
    if (!ballot.more) expected.take();
    if (whole) exchange->deliver();
    watch.lap(&outcome.seconds.results);
    if (ballot.more) {
      so_far.parts = ballot.part + 1, so_far.step = ballot.step;
      so_far.failed = !ready, so_far.failure = failure;
      pending = std::move(so_far);
    }
  }
  const Channel::Traffic& traffic = channel.traffic();
  outcome.payload_sent = outcome.payload_received = traffic.payload;
  outcome.control_sent += traffic.control, outcome.control_received += traffic.control;
  return outcome;
}

SignOutcome OwnExchange::call(SignCollective& collective, const SignBallot& ballot, const SignResult& result,
                              ResidualState* residual, Exchange& exchange) {
  return collective.impl_->call(ballot, result, residual, &exchange);
}

SignCollective::SignCollective(std::shared_ptr<Transport> transport, const SignCollectiveOptions& options)
    : impl_(std::make_unique<Impl>(std::move(transport), nullptr, options)) {}

SignCollective::SignCollective(std::shared_ptr<Transport> inside, std::shared_ptr<Transport> between,
                               const SignCollectiveOptions& options) {
  LT_REQUIRE(between, "got no transport between nodes");
  impl_ = std::make_unique<Impl>(std::move(inside), std::move(between), options);
}

SignCollective::~SignCollective() = default;
SignCollective::SignCollective(SignCollective&&) noexcept = default;
SignCollective& SignCollective::operator=(SignCollective&&) noexcept = default;

int SignCollective::rank() const { return impl_->channel.rank(); }
int SignCollective::size() const { return impl_->channel.size(); }
double SignCollective::latency_s() const { return impl_->cost.latency_s; }
double SignCollective::bytes_per_s() const { return impl_->cost.bytes_per_s; }

SignOutcome SignCollective::vote(const SignBallot& ballot, const SignResult& result) {
  SignBallot of = ballot;
  SignResult to = result;
  of.scales = nullptr, to.scales = nullptr;
  return impl_->call(of, to, nullptr);
}

SignOutcome SignCollective::mean(const SignBallot& ballot, const SignResult& result, SignResidual& residual) {
  return impl_->call(ballot, result, residual.impl_.get());
}

}  // namespace lowtide
