// Every rank owns a shard of the signs: it gets the ballots of its shard, votes (or averages), and sends the result to
// all.
#include <cstring>

#include "core/error.h"
#include "core/thread_pool.h"
#include "sign/exchange.h"
#include "sign/pieces.h"

namespace lowtide {
namespace {

using wire::Reason;
using wire::Round;

class TwoPhase final : public Exchange {
 public:
  explicit TwoPhase(const ExchangeCall& call) : call_(call), me_(call.channel.rank()) {
    const bool mean = call.residual != nullptr;
    shape_ = {shard_signs(call.ballot.count, call.channel.size()), mean || call.ballot.presence,
              !mean && call.ties == TieRule::kZero, call.channel.size()};
    first_ = me_ * shape_.signs;
    count_ = signs_of_piece(call.ballot.count, first_, shape_.signs);
  }

  void prepare() override {
    // What was sent is not needed when the results come.
    send_ = call_.scratch.first.need(std::max(shape_.ballot_bytes(), shape_.result_bytes()) * shape_.ranks);
    results_ = send_;
    ballots_ = call_.scratch.second.need(shape_.ballot_bytes() * shape_.ranks);
    result_ = call_.scratch.third.need(shape_.result_bytes());
    if (call_.residual) call_.residual->next = call_.residual->now;
  }

  Found run(const Agreement& agreed) override {
    Stopwatch watch;
    const int64_t bytes = shape_.ballot_bytes(), payload = bytes - wire::kHeaderBytes;
    parallel_for(shape_.ranks, call_.threads, [&](int64_t r) {
      std::byte* const message = send_ + r * bytes;
      const int64_t first = r * shape_.signs;
      fill_ballot(call_.ballot, first, shape_, agreed.weight(me_) > 0, message);
      wire::seal_message(header_of(agreed, Round::kBallot, me_, static_cast<int>(r), first), message, payload);
    });
    call_.channel.all_to_all(Channel::Level::kInside, send_, ballots_, bytes);
    watch.lap(&call_.outcome->seconds.ballots);

    const std::vector<Reason> reasons = check_ballots(agreed);
    wire::Header header = header_of(agreed, Round::kResult, me_, wire::kEveryone, first_);
    std::memset(PieceShape::reasons(result_), 0, static_cast<size_t>(shape_.result_bytes() - wire::kHeaderBytes));
    for (size_t r = 0; r < reasons.size(); ++r) PieceShape::reasons(result_)[r] = static_cast<std::byte>(reasons[r]);
    try {
      header.reason = decide(agreed, reasons, &header.votes);
    } catch (const std::exception&) {
      header.reason = Reason::kSenderFailed;  // the others must hear of it, and this rank will
    }
    wire::seal_message(header, result_, shape_.result_bytes() - wire::kHeaderBytes);
    watch.lap(&call_.outcome->seconds.vote);

    call_.channel.all_gather(Channel::Level::kInside, result_, results_, shape_.result_bytes());
    std::vector<ResultPlace> places;
    for (int r = 0; r < shape_.ranks; ++r) places.push_back({r, r * shape_.signs});
    const Found found = read_results(agreed, shape_, results_, places, call_.threads, call_.outcome);
    watch.lap(&call_.outcome->seconds.results);
    return found;
  }

  void deliver() override {
    for (int64_t r = 0; r < shape_.ranks; ++r)
      deliver_result(shape_, results_ + r * shape_.result_bytes(), r * shape_.signs, call_.ballot.count, call_.result);
    if (call_.residual) std::swap(call_.residual->now, call_.residual->next);
  }

 private:
  std::vector<Reason> check_ballots(const Agreement& agreed) {
    const int64_t bytes = shape_.ballot_bytes();
    std::vector<Reason> reasons = agreed.reasons;
    parallel_for(shape_.ranks, call_.threads, [&](int64_t r) {
      const auto at = static_cast<size_t>(r);
      if (reasons[at] != Reason::kFine || agreed.of[at].weight == 0) return;
      std::byte* const message = ballots_ + r * bytes;
      wire::Header read;
      reasons[at] = wire::check_message(header_of(agreed, Round::kBallot, static_cast<int>(r), me_, first_), message,
                                        bytes - wire::kHeaderBytes, &read);
      if (reasons[at] == Reason::kFine && call_.residual && !sound_scales(shape_.ballot_extra(message), count_))
        reasons[at] = Reason::kBadScale;
    });
    return reasons;
  }

  Reason decide(const Agreement& agreed, const std::vector<Reason>& reasons, uint32_t* votes) {
    std::vector<const std::byte*> ballots, extra;
    std::vector<uint32_t> weights;
    for (int r = 0; r < shape_.ranks; ++r) {
      std::byte* const message = ballots_ + r * shape_.ballot_bytes();
      ballots.push_back(PieceShape::ballot_bits(message));
      if (shape_.extra) extra.push_back(shape_.ballot_extra(message));
      weights.push_back(reasons[static_cast<size_t>(r)] == Reason::kFine ? agreed.weight(r) : 0);
      *votes += weights.back();
    }
    if (count_ == 0) return Reason::kFine;
    if (*votes == 0) return Reason::kNoVotes;
    if (!call_.residual) {
      vote(ballots, extra, weights);
      return Reason::kFine;
    }
    average(ballots, extra, weights);
    // Beyond float32: what it leaves out would be no number, and stay in the residual for ever.
    return sound_scales(shape_.result_extra(result_), count_) ? Reason::kFine : Reason::kBadScale;
  }

  void vote(const std::vector<const std::byte*>& ballots, const std::vector<const std::byte*>& presence,
            const std::vector<uint32_t>& weights) {
    VoteItem item;
    item.count = count_;
    item.ballots = ballots, item.presence = presence, item.weights = weights;
    item.ties = call_.ties, item.seed = call_.seed, item.step = call_.ballot.step;
    item.first_index = call_.ballot.first_index + static_cast<uint64_t>(first_);
    item.previous = call_.ballot.previous ? call_.ballot.previous + first_ / 8 : nullptr;
    item.result = shape_.result_bits(result_);
    item.zeros = shape_.zeros ? shape_.result_zeros(result_) : nullptr;
    item.result_presence = shape_.extra ? shape_.result_extra(result_) : nullptr;
    call_.backend.vote_signs(item, call_.threads, nullptr);
  }

  void average(const std::vector<const std::byte*>& ballots, const std::vector<const std::byte*>& extra,
               const std::vector<uint32_t>& weights) {
    // Scales lie at even places: headers, bits and reasons are multiples of 8 bytes, and messages of 2.
    std::vector<const uint16_t*> scales;
    for (const std::byte* each : extra) scales.push_back(reinterpret_cast<const uint16_t*>(each));
    ResidualState& residual = *call_.residual;
    FeedbackItem item;
    item.count = count_;
    item.ballots = ballots, item.ballot_scales = scales, item.weights = weights;
    item.codec = residual.codec;
    item.codes = residual.next.codes.data();
    item.scales = residual.scales(residual.next);
    item.bits = shape_.result_bits(result_);
    item.bit_scales = reinterpret_cast<uint16_t*>(shape_.result_extra(result_));
    call_.backend.feedback({&item, 1}, call_.threads, nullptr);
  }

  ExchangeCall call_;
  int me_;
  int64_t first_, count_;
  PieceShape shape_;
  std::byte *send_ = nullptr, *ballots_ = nullptr, *result_ = nullptr, *results_ = nullptr;
};

}  // namespace

std::unique_ptr<Exchange> make_two_phase(const ExchangeCall& call) { return std::make_unique<TwoPhase>(call); }

}  // namespace lowtide
