// One phase: every rank gets every whole ballot and votes on all signs. One phase takes only one latency but sends
// (ranks - 1) ballots, so it suits few ranks or few signs.

#include "sign/exchange.h"
#include "sign/shard_messages.h"

namespace lowtide {
namespace {

using wire::Reason;

class OnePhase final : public Exchange {
 public:
  explicit OnePhase(const ExchangeCall& call)
      : call_(call),
        layout_{shard_signs(call.ballot.count, 1), call.ballot.presence != nullptr, call.ties == TieRule::kZero,
                call.channel.size()} {}

  void prepare() override {
    mine_ = call_.scratch.first.need(layout_.ballot_bytes());
    all_ = call_.scratch.second.need(layout_.ballot_bytes() * layout_.ranks);
    result_ = call_.scratch.third.need(layout_.result_bytes());  // laid out like a message, but not sent
  }

  Found run(const Agreement& agreed) override {
    Stopwatch watch;
    const int64_t bytes = layout_.ballot_bytes();
    write_ballot(call_, agreed, layout_, wire::kEveryone, 0, mine_);
    call_.channel.all_gather(Channel::Level::kInside, mine_, all_, bytes);
    watch.lap(&call_.outcome->seconds.ballots);

    const std::vector<Reason> reasons =
        check_ballots(agreed, 0, layout_.ranks, wire::kEveryone, 0, all_, bytes, call_.threads);
    begin_result(layout_, reasons, result_);
    Found found;
    try {
      const Voters voters = voters_of(agreed, layout_, all_, reasons);
      if (voters.votes)
        vote(call_, layout_, voters, 0, call_.ballot.count, result_);
      else
        found.reason = Reason::kNoVotes;
    } catch (const std::exception&) {
      found.reason = Reason::kSenderFailed;
    }
    if (found.reason != Reason::kFine) found.culprit = call_.channel.rank();
    for (size_t r = 0; r < reasons.size(); ++r) {
      if (reasons[r] == Reason::kFine || agreed.reasons[r] != Reason::kFine) continue;
      call_.outcome->rejected.push_back({static_cast<int>(r), -1, wire::describe(reasons[r])});
      if (found.suspect < 0) found.suspect = static_cast<int>(r), found.suspicion = reasons[r];
    }
    reject_unannounced(agreed, call_.outcome);
    // The checksum also covers the reasons, because all ranks must leave out the same ballots.
    found.result =
        wire::checksum(ShardLayout::reasons(result_), static_cast<size_t>(layout_.result_bytes() - wire::kHeaderBytes),
                       agreed.weights_checksum());
    watch.lap(&call_.outcome->seconds.vote);
    return found;
  }

  void deliver() override { deliver_result(call_, layout_, result_, 0); }

 private:
  ExchangeCall call_;
  ShardLayout layout_;
  std::byte *mine_ = nullptr, *all_ = nullptr, *result_ = nullptr;
};

}  // namespace

std::unique_ptr<Exchange> make_one_phase(const ExchangeCall& call) { return std::make_unique<OnePhase>(call); }

}  // namespace lowtide
