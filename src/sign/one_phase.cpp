// Every rank gets every ballot and votes on all signs: for few ranks or few signs.
#include <cstring>

#include "core/crc32c.h"
#include "core/error.h"
#include "core/thread_pool.h"
#include "sign/exchange.h"
#include "sign/pieces.h"

namespace lowtide {
namespace {

using wire::Reason;
using wire::Round;

class OnePhase final : public Exchange {
 public:
  explicit OnePhase(const ExchangeCall& call) : call_(call) {
    // The result lies as in a message, but is not sent.
    shape_ = {shard_signs(call.ballot.count, 1), call.ballot.presence != nullptr, call.ties == TieRule::kZero,
              call.channel.size()};
  }

  void prepare() override {
    mine_ = call_.scratch.first.need(shape_.ballot_bytes());
    all_ = call_.scratch.second.need(shape_.ballot_bytes() * shape_.ranks);
    result_ = call_.scratch.third.need(shape_.result_bytes());
  }

  Found run(const Agreement& agreed) override {
    Stopwatch watch;
    const int64_t bytes = shape_.ballot_bytes(), payload = bytes - wire::kHeaderBytes;
    const int me = call_.channel.rank();
    fill_ballot(call_.ballot, 0, shape_, agreed.weight(me) > 0, mine_);
    wire::seal_message(header_of(agreed, Round::kBallot, me, wire::kEveryone, 0), mine_, payload);
    call_.channel.all_gather(Channel::Level::kInside, mine_, all_, bytes);
    watch.lap(&call_.outcome->seconds.ballots);

    const auto ranks = static_cast<size_t>(shape_.ranks);
    std::vector<Reason> reasons = agreed.reasons;
    parallel_for(shape_.ranks, call_.threads, [&](int64_t r) {
      const auto at = static_cast<size_t>(r);
      if (reasons[at] != Reason::kFine || agreed.of[at].weight == 0) return;
      wire::Header read;
      reasons[at] = wire::check_message(header_of(agreed, Round::kBallot, static_cast<int>(r), wire::kEveryone, 0),
                                        all_ + r * bytes, payload, &read);
    });
    Found found;
    try {
      vote(agreed, reasons, &found);
    } catch (const std::exception&) {
      found.reason = Reason::kSenderFailed, found.culprit = me;
    }
    // Who is left out must be the same everywhere, and so is part of the result.
    std::memset(PieceShape::reasons(result_), 0, static_cast<size_t>(shape_.reasons_bytes()));
    for (size_t r = 0; r < ranks; ++r) {
      PieceShape::reasons(result_)[r] = static_cast<std::byte>(reasons[r]);
      if (reasons[r] == Reason::kFine || agreed.reasons[r] != Reason::kFine) continue;
      call_.outcome->rejected.push_back({static_cast<int>(r), -1, wire::describe(reasons[r])});
      if (found.suspect < 0) found.suspect = static_cast<int>(r), found.suspicion = reasons[r];
    }
    reject_unannounced(agreed, call_.outcome);
    found.result_crc = crc32c(PieceShape::reasons(result_),
                              static_cast<size_t>(shape_.result_bytes() - wire::kHeaderBytes), agreed.weights_crc());
    watch.lap(&call_.outcome->seconds.vote);
    return found;
  }

  void deliver() override { deliver_result(shape_, result_, 0, call_.ballot.count, call_.result); }

 private:
  void vote(const Agreement& agreed, const std::vector<Reason>& reasons, Found* found) {
    std::vector<const std::byte*> ballots, presence;
    std::vector<uint32_t> weights;
    uint32_t votes = 0;
    for (int r = 0; r < shape_.ranks; ++r) {
      std::byte* const message = all_ + r * shape_.ballot_bytes();
      const bool fine = reasons[static_cast<size_t>(r)] == Reason::kFine;
      ballots.push_back(PieceShape::ballot_bits(message));
      if (shape_.extra) presence.push_back(shape_.ballot_extra(message));
      weights.push_back(fine ? agreed.weight(r) : 0);
      votes += weights.back();
    }
    if (votes == 0) {
      found->reason = Reason::kNoVotes, found->culprit = call_.channel.rank();
      return;
    }
    // Whole pieces are zeroed, for the checksum goes over all of them.
    std::memset(shape_.result_bits(result_), 0,
                static_cast<size_t>(shape_.result_bytes() - wire::kHeaderBytes - shape_.reasons_bytes()));
    VoteItem item;
    item.count = call_.ballot.count;
    item.ballots = ballots, item.presence = presence, item.weights = weights;
    item.ties = call_.ties, item.seed = call_.seed, item.step = call_.ballot.step;
    item.first_index = call_.ballot.first_index, item.previous = call_.ballot.previous;
    item.result = shape_.result_bits(result_);
    item.zeros = shape_.zeros ? shape_.result_zeros(result_) : nullptr;
    item.result_presence = shape_.extra ? shape_.result_extra(result_) : nullptr;
    call_.backend.vote_signs(item, call_.threads, nullptr);
  }

  ExchangeCall call_;
  PieceShape shape_;
  std::byte *mine_ = nullptr, *all_ = nullptr, *result_ = nullptr;
};

}  // namespace

std::unique_ptr<Exchange> make_one_phase(const ExchangeCall& call) { return std::make_unique<OnePhase>(call); }

}  // namespace lowtide
