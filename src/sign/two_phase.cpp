// Two phases: every rank owns a shard of the signs. It gets all ballots of its shard, votes or averages, and sends the
// result to all.
#include <cstring>

#include "core/thread_pool.h"
#include "sign/exchange.h"
#include "sign/shard_messages.h"

namespace lowtide {
namespace {

using wire::Reason;
using wire::Round;

class TwoPhase final : public Exchange {
 public:
  explicit TwoPhase(const ExchangeCall& call) : call_(call), me_(call.channel.rank()) {
    const bool mean = call.residual != nullptr;
    layout_ = {shard_signs(call.ballot.count, call.channel.size()), mean || call.ballot.presence,
               !mean && call.ties == TieRule::kZero, call.channel.size()};
    first_ = me_ * layout_.signs;
    count_ = signs_in_shard(call.ballot.count, first_, layout_.signs);
  }

  void prepare() override {
    // The results may overwrite what was sent: it is not needed by then.
    send_ = call_.scratch.first.need(std::max(layout_.ballot_bytes(), layout_.result_bytes()) * layout_.ranks);
    results_ = send_;
    ballots_ = call_.scratch.second.need(layout_.ballot_bytes() * layout_.ranks);
    result_ = call_.scratch.third.need(layout_.result_bytes());
    if (call_.residual) call_.residual->next = call_.residual->now;
  }

  Found run(const Agreement& agreed) override {
    Stopwatch watch;
    const int64_t bytes = layout_.ballot_bytes();
    parallel_for(layout_.ranks, call_.threads, [&](int64_t r) {
      write_ballot(call_, agreed, layout_, static_cast<int>(r), r * layout_.signs, send_ + r * bytes);
    });
    call_.channel.all_to_all(Channel::Level::kInside, send_, ballots_, bytes);
    watch.lap(&call_.outcome->seconds.ballots);

    std::vector<Reason> reasons = check_ballots(agreed, 0, layout_.ranks, me_, first_, ballots_, bytes, call_.threads);
    if (call_.residual) check_scales(agreed, &reasons);
    begin_result(layout_, reasons, result_);
    wire::Header header = header_of(agreed, Round::kResult, me_, wire::kEveryone, first_);
    try {
      header.reason = decide(agreed, reasons, &header.votes);
    } catch (const std::exception&) {
      header.reason = Reason::kSenderFailed;  // confirm() throws for it, here and on all other ranks
    }
    wire::seal_message(header, result_, layout_.result_bytes() - wire::kHeaderBytes);
    watch.lap(&call_.outcome->seconds.vote);

    call_.channel.all_gather(Channel::Level::kInside, result_, results_, layout_.result_bytes());
    std::vector<ResultPlace> places;
    for (int r = 0; r < layout_.ranks; ++r) places.push_back({r, r * layout_.signs});
    const Found found = check_results(agreed, layout_, results_, places, call_.threads, call_.outcome);
    watch.lap(&call_.outcome->seconds.results);
    return found;
  }

  void deliver() override {
    for (int64_t r = 0; r < layout_.ranks; ++r)
      deliver_result(call_, layout_, results_ + r * layout_.result_bytes(), r * layout_.signs);
    if (call_.residual) std::swap(call_.residual->now, call_.residual->next);
  }

 private:
  void check_scales(const Agreement& agreed, std::vector<Reason>* reasons) {
    for (int r = 0; r < layout_.ranks; ++r) {
      Reason& reason = (*reasons)[static_cast<size_t>(r)];
      if (reason == Reason::kFine && agreed.weight(r) &&
          !sound_scales(layout_.ballot_extra(ballots_ + r * layout_.ballot_bytes()), count_))
        reason = Reason::kBadScale;
    }
  }

  Reason decide(const Agreement& agreed, const std::vector<Reason>& reasons, uint32_t* votes) {
    const Voters voters = voters_of(agreed, layout_, ballots_, reasons);
    *votes = voters.votes;
    if (count_ == 0) return Reason::kFine;
    if (voters.votes == 0) return Reason::kNoVotes;
    if (call_.residual) return average(voters);
    VoteItem item = vote_into(call_, layout_, first_, count_, result_);
    item.ballots = voters.ballots, item.presence = voters.extra, item.weights = voters.weights;
    call_.backend.vote_signs(item, call_.threads, nullptr);
    return Reason::kFine;
  }

  Reason average(const Voters& voters) {
    // Scales lie at even addresses: headers, bits and reasons are multiples of 8 bytes, and messages of 2.
    std::vector<const uint16_t*> scales;
    for (const std::byte* each : voters.extra) scales.push_back(reinterpret_cast<const uint16_t*>(each));
    ResidualState& residual = *call_.residual;
    FeedbackItem item;
    item.count = count_;
    item.ballots = voters.ballots, item.ballot_scales = scales, item.weights = voters.weights;
    item.codec = residual.codec;
    item.codes = residual.next.codes.data();
    item.scales = residual.scales(residual.next);
    item.bits = layout_.result_bits(result_);
    item.bit_scales = reinterpret_cast<uint16_t*>(layout_.result_extra(result_));
    call_.backend.feedback({&item, 1}, call_.threads, nullptr);
    // A scale beyond float32 would leave a residual that is no number, for ever.
    return sound_scales(layout_.result_extra(result_), count_) ? Reason::kFine : Reason::kBadScale;
  }

  ExchangeCall call_;
  int me_;
  int64_t first_, count_;
  ShardLayout layout_;
  std::byte *send_ = nullptr, *ballots_ = nullptr, *result_ = nullptr, *results_ = nullptr;
};

}  // namespace

std::unique_ptr<Exchange> make_two_phase(const ExchangeCall& call) { return std::make_unique<TwoPhase>(call); }

}  // namespace lowtide
