// Nodes of several ranks. Inside a node, rank l gets the ballots of shard l and counts them; between nodes, rank (m, l)
// gets the counts of part m of shard l and votes on it: the majority of all ranks, not one of nodes' majorities.
// Results go back the same way. Part m of shard l begins at sign (l * nodes + m) * (signs of a part).
#include <bit>
#include <cstring>

#include "core/error.h"
#include "core/thread_pool.h"
#include "sign/exchange.h"
#include "sign/pieces.h"

namespace lowtide {
namespace {

using wire::Reason;
using wire::Round;

class TwoLevel final : public Exchange {
 public:
  explicit TwoLevel(const ExchangeCall& call)
      : call_(call),
        me_(call.channel.rank()),
        ranks_(call.channel.inside_size()),
        nodes_(call.channel.nodes()),
        local_(call.channel.inside_rank()),
        node_(call.channel.node()) {
    const bool presence = call.ballot.presence != nullptr;
    part_ = {shard_signs(call.ballot.count, call.channel.size()), presence, call.ties == TieRule::kZero,
             call.channel.size()};
    shard_ = part_;
    shard_.signs = part_.signs * nodes_;
    count_ = signs_of_piece(call.ballot.count, first_of(local_, node_), part_.signs);
  }

  void prepare() override {
    // What was sent is not needed when the results come.
    send_ = call_.scratch.first.need(
        std::max(shard_.ballot_bytes() * ranks_, part_.result_bytes() * (part_.ranks + nodes_ + 1)));
    results_ = send_;
    ballots_ = call_.scratch.second.need(shard_.ballot_bytes() * ranks_);
    // How many planes there are is known when all weights are; as many as these where all are alike.
    planes_ = std::bit_width(uint64_t{call_.weight} * static_cast<uint64_t>(ranks_));
    call_.scratch.third.need(2 * counts_bytes() * nodes_);
  }

  Found run(const Agreement& agreed) override {
    Stopwatch watch;
    send_ballots(agreed);
    watch.lap(&call_.outcome->seconds.ballots);
    count_ballots(agreed);
    watch.lap(&call_.outcome->seconds.vote);
    call_.channel.all_to_all(Channel::Level::kBetween, counts_out_, counts_in_, counts_bytes());
    watch.lap(&call_.outcome->seconds.ballots);
    std::byte* const mine = results_ + part_.result_bytes() * (part_.ranks + nodes_);
    make_result(agreed, mine);
    watch.lap(&call_.outcome->seconds.vote);

    std::byte* const of_shard = results_ + part_.result_bytes() * part_.ranks;
    call_.channel.all_gather(Channel::Level::kBetween, mine, of_shard, part_.result_bytes());
    call_.channel.all_gather(Channel::Level::kInside, of_shard, results_, part_.result_bytes() * nodes_);
    std::vector<ResultPlace> places;
    for (int l = 0; l < ranks_; ++l)
      for (int m = 0; m < nodes_; ++m) places.push_back({rank_of(m, l), first_of(l, m)});
    const Found found = read_results(agreed, part_, results_, places, call_.threads, call_.outcome);
    watch.lap(&call_.outcome->seconds.results);
    return found;
  }

  void deliver() override {
    for (int64_t i = 0; i < part_.ranks; ++i)
      deliver_result(part_, results_ + i * part_.result_bytes(), i * part_.signs, call_.ballot.count, call_.result);
  }

 private:
  int rank_of(int node, int local) const { return node * ranks_ + local; }
  int64_t first_of(int local, int node) const { return (int64_t{local} * nodes_ + node) * part_.signs; }

  // Counts: header, reasons of the node's ranks, planes of bits and then, with presence, planes of presence.
  int64_t counts_reasons_bytes() const { return (ranks_ + 7) / 8 * 8; }
  int64_t plane_bytes() const { return part_.bits_bytes() + part_.extra_bytes(); }
  int64_t counts_bytes() const { return wire::kHeaderBytes + counts_reasons_bytes() + planes_ * plane_bytes(); }
  std::byte* plane(std::byte* counts, int j) const {
    return counts + wire::kHeaderBytes + counts_reasons_bytes() + j * part_.bits_bytes();
  }
  std::byte* presence_plane(std::byte* counts, int j) const { return plane(counts, planes_) + j * part_.extra_bytes(); }

  void send_ballots(const Agreement& agreed) {
    // As many planes on all ranks: those of the node with the most votes. Who is not known has the most that one has.
    uint32_t most = 0;
    for (int r = 0; r < part_.ranks; ++r) most = std::max(most, agreed.weight(r));
    uint64_t of_node = 0;
    for (int m = 0; m < nodes_; ++m) {
      uint64_t sum = 0;
      for (int l = 0; l < ranks_; ++l) sum += agreed.announcement(rank_of(m, l)) ? agreed.weight(rank_of(m, l)) : most;
      of_node = std::max(of_node, sum);
    }
    planes_ = std::bit_width(of_node);
    if (planes_ > 31 || ((uint64_t{1} << planes_) - 1) * static_cast<uint64_t>(nodes_) >= uint64_t{1} << 31)
      throw CollectiveError(ErrorKind::kInvalidArgument,
                            format("got weights of %llu votes on a node, wanted fewer than 2^30 / nodes",
                                   static_cast<unsigned long long>(of_node)),
                            {});
    counts_out_ = call_.scratch.third.need(2 * counts_bytes() * nodes_);
    counts_in_ = counts_out_ + counts_bytes() * nodes_;

    const int64_t bytes = shard_.ballot_bytes();
    parallel_for(ranks_, call_.threads, [&](int64_t l) {
      std::byte* const message = send_ + l * bytes;
      const int64_t first = first_of(static_cast<int>(l), 0);
      fill_ballot(call_.ballot, first, shard_, agreed.weight(me_) > 0, message);
      wire::seal_message(header_of(agreed, Round::kBallot, me_, rank_of(node_, static_cast<int>(l)), first), message,
                         bytes - wire::kHeaderBytes);
    });
    call_.channel.all_to_all(Channel::Level::kInside, send_, ballots_, bytes);
  }

  void count_ballots(const Agreement& agreed) {
    const int64_t bytes = shard_.ballot_bytes(), first = first_of(local_, 0);
    std::vector<Reason> reasons(static_cast<size_t>(ranks_));
    std::vector<uint32_t> weights(static_cast<size_t>(ranks_));
    parallel_for(ranks_, call_.threads, [&](int64_t l) {
      const int r = rank_of(node_, static_cast<int>(l));
      Reason& reason = reasons[static_cast<size_t>(l)];
      reason = agreed.reasons[static_cast<size_t>(r)];
      wire::Header read;
      if (reason == Reason::kFine && agreed.weight(r))
        reason = wire::check_message(header_of(agreed, Round::kBallot, r, me_, first), ballots_ + l * bytes,
                                     bytes - wire::kHeaderBytes, &read);
      weights[static_cast<size_t>(l)] = reason == Reason::kFine ? agreed.weight(r) : 0;
    });
    for (int m = 0; m < nodes_; ++m) {
      std::byte* const message = counts_out_ + m * counts_bytes();
      std::memset(message, 0, static_cast<size_t>(counts_bytes()));
      for (size_t l = 0; l < reasons.size(); ++l) message[wire::kHeaderBytes + l] = static_cast<std::byte>(reasons[l]);
      wire::Header header = header_of(agreed, Round::kCounts, me_, rank_of(m, local_), first_of(local_, m));
      for (const uint32_t weight : weights) header.votes += weight;
      try {
        count_part(m, weights, message);
      } catch (const std::exception&) {
        header.reason = Reason::kSenderFailed;
      }
      wire::seal_message(header, message, counts_bytes() - wire::kHeaderBytes);
    }
  }

  void count_part(int m, const std::vector<uint32_t>& weights, std::byte* message) {
    std::vector<const std::byte*> ballots, presence;
    std::vector<std::byte*> planes, presence_planes;
    for (int l = 0; l < ranks_; ++l) {
      std::byte* const ballot = ballots_ + l * shard_.ballot_bytes();
      ballots.push_back(PieceShape::ballot_bits(ballot) + m * part_.bits_bytes());
      if (part_.extra) presence.push_back(shard_.ballot_extra(ballot) + m * part_.extra_bytes());
    }
    for (int j = 0; j < planes_; ++j) {
      planes.push_back(plane(message, j));
      presence_planes.push_back(presence_plane(message, j));
    }
    CountItem item;
    item.count = signs_of_piece(call_.ballot.count, first_of(local_, m), part_.signs);
    item.ballots = ballots, item.weights = weights, item.planes = planes;
    call_.backend.count_signs(item, call_.threads, nullptr);
    if (!part_.extra) return;
    item.count = (item.count + kSignBlock - 1) / kSignBlock;
    item.ballots = presence, item.planes = presence_planes;
    call_.backend.count_signs(item, call_.threads, nullptr);
  }

  void make_result(const Agreement& agreed, std::byte* message) {
    std::memset(message, 0, static_cast<size_t>(part_.result_bytes()));
    const int64_t first = first_of(local_, node_);
    std::vector<uint32_t> votes(static_cast<size_t>(nodes_));  // 0: its counts are not used
    wire::Header header = header_of(agreed, Round::kResult, me_, wire::kEveryone, first);
    // What a node's rank sends is known by what this rank knows of the call.
    for (int m = 0; m < nodes_; ++m) {
      std::byte* const counts = counts_in_ + m * counts_bytes();
      wire::Header due = header_of(agreed, Round::kCounts, me_, me_, first), read;
      due.sender = rank_of(m, local_), due.announcement = agreed.announcement(due.sender);
      const Reason reason = wire::check_message(due, counts, counts_bytes() - wire::kHeaderBytes, &read);
      std::byte* const reasons = PieceShape::reasons(message) + rank_of(m, 0);
      if (reason == Reason::kFine) {
        std::memcpy(reasons, counts + wire::kHeaderBytes, static_cast<size_t>(ranks_));
        votes[static_cast<size_t>(m)] = read.votes;
      } else {
        std::memset(reasons, static_cast<int>(Reason::kLostCounts), static_cast<size_t>(ranks_));
        reasons[local_] = static_cast<std::byte>(reason);
      }
      header.votes += votes[static_cast<size_t>(m)];
    }
    try {
      if (count_ && header.votes == 0)
        header.reason = Reason::kNoVotes;
      else if (count_)
        vote(votes, message);
    } catch (const std::exception&) {
      header.reason = Reason::kSenderFailed;
    }
    wire::seal_message(header, message, part_.result_bytes() - wire::kHeaderBytes);
  }

  void vote(const std::vector<uint32_t>& votes, std::byte* message) {
    // Without presence all of a node's votes are in every block: its planes of presence are all ones or all zeros.
    const auto blocks = static_cast<size_t>(presence_bytes(part_.signs));
    const std::vector<std::byte> none(blocks), all(blocks, std::byte{0xff});
    std::vector<std::byte> result_presence(part_.extra ? 0 : blocks);
    std::vector<const std::byte*> ballots, presence;
    std::vector<uint32_t> weights;
    for (int m = 0; m < nodes_; ++m) {
      const uint32_t of_node = votes[static_cast<size_t>(m)];
      std::byte* const counts = counts_in_ + m * counts_bytes();
      for (int j = 0; of_node && j < planes_; ++j) {
        ballots.push_back(plane(counts, j));
        presence.push_back(part_.extra ? presence_plane(counts, j) : (of_node >> j & 1 ? all : none).data());
        weights.push_back(uint32_t{1} << j);
      }
    }
    VoteItem item;
    item.count = count_;
    item.ballots = ballots, item.presence = presence, item.weights = weights;
    const int64_t first = first_of(local_, node_);
    item.ties = call_.ties, item.seed = call_.seed, item.step = call_.ballot.step;
    item.first_index = call_.ballot.first_index + static_cast<uint64_t>(first);
    item.previous = call_.ballot.previous ? call_.ballot.previous + first / 8 : nullptr;
    item.result = part_.result_bits(message);
    item.zeros = part_.zeros ? part_.result_zeros(message) : nullptr;
    item.result_presence = part_.extra ? part_.result_extra(message) : result_presence.data();
    call_.backend.vote_signs(item, call_.threads, nullptr);
  }

  ExchangeCall call_;
  int me_, ranks_, nodes_, local_, node_;
  int planes_ = 0;
  int64_t count_;
  PieceShape part_, shard_;
  std::byte *send_ = nullptr, *ballots_ = nullptr, *counts_out_ = nullptr, *counts_in_ = nullptr, *results_ = nullptr;
};

}  // namespace

std::unique_ptr<Exchange> make_two_level(const ExchangeCall& call) { return std::make_unique<TwoLevel>(call); }

}  // namespace lowtide
