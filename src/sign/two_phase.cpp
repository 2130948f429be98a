// Two phases: every rank owns a part of the signs. A rank gets all ballots for its part, votes or averages, and sends
// the result to all ranks.
//
// With one level, a rank gets all ballots of its part. With two levels, which have nodes of several ranks each, rank l
// of a node gets its node's ballots of shard l and counts them. A shard has one part for each node: rank l of node m
// gets all nodes' counts of part m of shard l and votes on that part. The result is therefore the majority of all
// ranks, not a majority of the nodes' majorities. Results return by the same path: between nodes first.
//
// Ranks are numbered node by node. Part m of shard l begins at sign (l * nodes + m) * (signs of a part). With one level
// there is one node, whose shards have one part each.
#include <bit>
#include <cstring>

#include "core/error.h"
#include "core/thread_pool.h"
#include "sign/exchange.h"
#include "sign/expected.h"
#include "sign/shard_messages.h"

namespace lowtide {
namespace {

using wire::Reason;
using wire::Round;

// The message with a node's counts of a part. It holds a header, a Reason for each rank of the node, the counts in bit
// planes (plane j holds bit j of every count) and, with presence, the counts of presence in planes of the same form.
struct CountsLayout {
  int ranks = 0, planes = 0;
  int64_t bits_bytes = 0, presence_bytes = 0;  // sizes of each plane

  int64_t reasons_bytes() const { return (ranks + 7) / 8 * 8; }
  int64_t bytes() const { return wire::kHeaderBytes + reasons_bytes() + planes * (bits_bytes + presence_bytes); }
  static std::byte* reasons(std::byte* message) { return message + wire::kHeaderBytes; }
  std::byte* plane(std::byte* message, int j) const { return reasons(message) + reasons_bytes() + j * bits_bytes; }
  std::byte* presence_plane(std::byte* message, int j) const { return plane(message, planes) + j * presence_bytes; }
};

class TwoPhase final : public Exchange {
 public:
  explicit TwoPhase(const ExchangeCall& call)
      : call_(call),
        counts_votes_(call.channel.two_level()),
        ranks_(call.channel.inside_size()),
        nodes_(call.channel.nodes()),
        local_(call.channel.inside_rank()),
        node_(call.channel.node()) {
    const bool mean = call.residual != nullptr;
    part_ = {shard_signs(call.ballot.count, call.channel.size()), mean || call.ballot.presence,
             !mean && call.ties == TieRule::kZero, call.channel.size()};
    shard_ = part_;
    shard_.signs = part_.signs * nodes_;
    first_ = first_of(local_, node_);
    count_ = signs_in_shard(call.ballot.count, first_, part_.signs);
    counts_ = {ranks_, 0, part_.bits_bytes(), part_.extra_bytes()};
  }

  void prepare() override {
    // The results may overwrite the sent messages, which are no longer needed by then.
    const int64_t with_records = (wire::kRecordBytes + shard_.ballot_bytes()) * ranks_;
    send_ = call_.scratch.first.need(std::max(with_records, part_.result_bytes() * (part_.ranks + nodes_ + 1)));
    results_ = send_;
    ballots_ = call_.scratch.second.need(with_records);
    // The number of planes depends on all weights; this guess is right if all ranks have the same weight.
    if (counts_votes_) need_counts(uint64_t{call_.weight} * static_cast<uint64_t>(ranks_));
    if (call_.residual) call_.residual->next = call_.residual->now;
  }

  void send_early(const wire::Announcement& mine, std::byte* records) override {
    Stopwatch watch;
    write_ballots(Agreement::of_one(mine), wire::kRecordBytes);
    const int64_t each = wire::kRecordBytes + shard_.ballot_bytes();
    for (int l = 0; l < ranks_; ++l) std::memcpy(send_ + l * each, &mine, sizeof mine);
    call_.channel.all_to_all(Channel::Level::kInside, send_, ballots_, each, wire::kRecordBytes);
    take_records(ballots_, ranks_, shard_.ballot_bytes(), records);
    watch.lap(&call_.outcome->seconds.ballots);
  }

  Found run(const Agreement& agreed) override {
    SignOutcome::Seconds& seconds = call_.outcome->seconds;
    Stopwatch watch;
    if (counts_votes_) need_counts(most_votes_of_a_node(agreed));
    if (!agreed.with_ballots) {
      write_ballots(agreed, 0);
      call_.channel.all_to_all(Channel::Level::kInside, send_, ballots_, shard_.ballot_bytes());
    }
    watch.lap(&seconds.ballots);
    if (counts_votes_) {
      count_ballots(agreed);
      watch.lap(&seconds.vote);
      call_.channel.all_to_all(Channel::Level::kBetween, counts_out_, counts_in_, counts_.bytes());
      watch.lap(&seconds.ballots);
    }
    std::byte* const of_shard = results_ + part_.result_bytes() * part_.ranks;
    std::byte* const mine = counts_votes_ ? of_shard + part_.result_bytes() * nodes_ : of_shard;
    make_result(agreed, mine);
    watch.lap(&seconds.vote);

    if (counts_votes_) call_.channel.all_gather(Channel::Level::kBetween, mine, of_shard, part_.result_bytes());
    call_.channel.all_gather(Channel::Level::kInside, of_shard, results_, part_.result_bytes() * nodes_);
    std::vector<ResultPlace> places;
    for (int l = 0; l < ranks_; ++l)
      for (int m = 0; m < nodes_; ++m) places.push_back({rank_of(m, l), first_of(l, m)});
    const Found found = check_results(agreed, part_, results_, places, call_.threads, call_.outcome);
    watch.lap(&seconds.results);
    return found;
  }

  void deliver() override {
    for (int64_t i = 0; i < part_.ranks; ++i)
      deliver_result(call_, part_, results_ + i * part_.result_bytes(), i * part_.signs);
    if (call_.residual) std::swap(call_.residual->now, call_.residual->next);
  }

 private:
  int rank_of(int node, int local) const { return node * ranks_ + local; }
  int64_t first_of(int local, int node) const { return (int64_t{local} * nodes_ + node) * part_.signs; }
  int me() const { return call_.channel.rank(); }

  // Makes room for counts of up to `votes` on every node.
  void need_counts(uint64_t votes) {
    counts_.planes = std::bit_width(votes);
    counts_out_ = call_.scratch.third.need(2 * counts_.bytes() * nodes_);
    counts_in_ = counts_out_ + counts_.bytes() * nodes_;
  }

  // Returns a bound on the votes of a node. All ranks must compute the same number, so a rank without a valid
  // announcement counts as the heaviest rank. Throws CollectiveError, on all ranks alike, if the planes of all nodes
  // could hold 2^31 votes or more.
  uint64_t most_votes_of_a_node(const Agreement& agreed) const {
    uint32_t heaviest = 0;
    for (int r = 0; r < part_.ranks; ++r) heaviest = std::max(heaviest, agreed.weight(r));
    uint64_t most = 0;
    for (int m = 0; m < nodes_; ++m) {
      uint64_t votes = 0;
      for (int l = 0; l < ranks_; ++l)
        votes += agreed.announcement(rank_of(m, l)) ? agreed.weight(rank_of(m, l)) : heaviest;
      most = std::max(most, votes);
    }
    const int planes = std::bit_width(most);
    if (planes > 31 || ((uint64_t{1} << planes) - 1) * static_cast<uint64_t>(nodes_) >= uint64_t{1} << 31)
      throw CollectiveError(CollectiveError::Cause::kDisagreement,
                            format("got weights of %llu votes on a node, wanted fewer than 2^30 / nodes",
                                   static_cast<unsigned long long>(most)),
                            {});
    return most;
  }

  // Writes the ballots to send_, leaving `before` bytes in front of each message.
  void write_ballots(const Agreement& agreed, int64_t before) {
    const int64_t each = before + shard_.ballot_bytes();
    parallel_for(ranks_, call_.threads, [&](int64_t l) {
      const auto local = static_cast<int>(l);
      write_ballot(call_, agreed, shard_, rank_of(node_, local), first_of(local, 0), send_ + l * each + before);
    });
  }

  // Checks the messages for this rank's shard from the ranks of its node.
  std::vector<Reason> check_received(const Agreement& agreed) const {
    return check_ballots(agreed, rank_of(node_, 0), ranks_, me(), first_of(local_, 0), ballots_, shard_.ballot_bytes(),
                         call_.threads);
  }

  void count_ballots(const Agreement& agreed) {
    const std::vector<Reason> reasons = check_received(agreed);
    std::vector<uint32_t> weights;
    for (int l = 0; l < ranks_; ++l)
      weights.push_back(reasons[static_cast<size_t>(l)] == Reason::kFine ? agreed.weight(rank_of(node_, l)) : 0);
    for (int m = 0; m < nodes_; ++m) {
      std::byte* const message = counts_out_ + m * counts_.bytes();
      std::memset(message, 0, static_cast<size_t>(counts_.bytes()));
      for (size_t l = 0; l < reasons.size(); ++l)
        CountsLayout::reasons(message)[l] = static_cast<std::byte>(reasons[l]);
      wire::Header header = header_of(agreed, Round::kCounts, me(), rank_of(m, local_), first_of(local_, m));
      for (const uint32_t weight : weights) header.votes += weight;
      try {
        count_part(m, weights, message);
      } catch (const std::exception&) {
        header.reason = Reason::kSenderFailed;
      }
      wire::seal_message(header, message, counts_.bytes() - wire::kHeaderBytes);
    }
  }

  void count_part(int m, const std::vector<uint32_t>& weights, std::byte* message) {
    std::vector<const std::byte*> ballots, presence;
    std::vector<std::byte*> planes, presence_planes;
    for (int l = 0; l < ranks_; ++l) {
      std::byte* const ballot = ballots_ + l * shard_.ballot_bytes();
      ballots.push_back(ShardLayout::ballot_bits(ballot) + m * part_.bits_bytes());
      if (part_.extra) presence.push_back(shard_.ballot_extra(ballot) + m * part_.extra_bytes());
    }
    for (int j = 0; j < counts_.planes; ++j) {
      planes.push_back(counts_.plane(message, j));
      presence_planes.push_back(counts_.presence_plane(message, j));
    }
    CountItem item;
    item.count = signs_in_shard(call_.ballot.count, first_of(local_, m), part_.signs);
    item.ballots = ballots, item.weights = weights, item.planes = planes;
    call_.backend.count_signs(item, call_.threads, nullptr);
    if (!part_.extra) return;
    item.count = (item.count + kSignBlock - 1) / kSignBlock;
    item.ballots = presence, item.planes = presence_planes;
    call_.backend.count_signs(item, call_.threads, nullptr);
  }

  void make_result(const Agreement& agreed, std::byte* message) {
    std::memset(message, 0, static_cast<size_t>(part_.result_bytes()));
    wire::Header header = header_of(agreed, Round::kResult, me(), wire::kEveryone, first_);
    try {
      header.reason = counts_votes_ ? decide_by_counts(agreed, message, &header.votes)
                                    : decide_by_ballots(agreed, message, &header.votes);
    } catch (const std::exception&) {
      header.reason = Reason::kSenderFailed;  // makes confirm() throw on all ranks
    }
    wire::seal_message(header, message, part_.result_bytes() - wire::kHeaderBytes);
  }

  Reason decide_by_ballots(const Agreement& agreed, std::byte* message, uint32_t* votes) {
    std::vector<Reason> reasons = check_received(agreed);
    for (int r = 0; call_.residual && r < part_.ranks; ++r) {
      Reason& reason = reasons[static_cast<size_t>(r)];
      if (reason == Reason::kFine && agreed.weight(r) &&
          !sound_scales(part_.ballot_extra(ballots_ + r * part_.ballot_bytes()), count_))
        reason = Reason::kBadScale;
    }
    begin_result(part_, reasons, message);
    const Voters voters = voters_of(agreed, part_, ballots_, reasons);
    *votes = voters.votes;
    if (count_ == 0) return Reason::kFine;
    if (voters.votes == 0) return Reason::kNoVotes;
    if (call_.residual) return average(voters, message);
    vote(call_, part_, voters, first_, count_, message);
    return Reason::kFine;
  }

  Reason average(const Voters& voters, std::byte* message) {
    // Scales are at even addresses, because headers, bits and reasons take multiples of 8 bytes and messages even
    // sizes.
    std::vector<const uint16_t*> scales;
    for (const std::byte* each : voters.extra) scales.push_back(reinterpret_cast<const uint16_t*>(each));
    ResidualState& residual = *call_.residual;
    FeedbackItem item;
    item.count = count_;
    item.ballots = voters.ballots, item.ballot_scales = scales, item.weights = voters.weights;
    item.codec = residual.codec;
    item.codes = residual.next.codes.data();
    item.scales = residual.scales(residual.next);
    item.bits = part_.result_bits(message);
    item.bit_scales = reinterpret_cast<uint16_t*>(part_.result_extra(message));
    call_.backend.feedback({&item, 1}, call_.threads, nullptr);
    // A scale beyond the float32 range would make the residual NaN forever.
    return sound_scales(part_.result_extra(message), count_) ? Reason::kFine : Reason::kBadScale;
  }

  Reason decide_by_counts(const Agreement& agreed, std::byte* message, uint32_t* all_votes) {
    std::vector<uint32_t> votes(static_cast<size_t>(nodes_));  // 0: the node's counts are not used
    for (int m = 0; m < nodes_; ++m) {
      std::byte* const counts = counts_in_ + m * counts_.bytes();
      wire::Header read;
      const Reason reason = wire::check_message(header_of(agreed, Round::kCounts, rank_of(m, local_), me(), first_),
                                                counts, counts_.bytes() - wire::kHeaderBytes, &read);
      std::byte* const reasons = ShardLayout::reasons(message) + rank_of(m, 0);
      if (reason == Reason::kFine) {
        std::memcpy(reasons, CountsLayout::reasons(counts), static_cast<size_t>(ranks_));
        votes[static_cast<size_t>(m)] = read.votes;
      } else {
        std::memset(reasons, static_cast<int>(Reason::kLostCounts), static_cast<size_t>(ranks_));
        reasons[local_] = static_cast<std::byte>(reason);
      }
      *all_votes += votes[static_cast<size_t>(m)];
    }
    if (count_ == 0) return Reason::kFine;
    if (*all_votes == 0) return Reason::kNoVotes;
    vote_on_counts(votes, message);
    return Reason::kFine;
  }

  // Votes on the planes of counts as if they were ballots of weights 1, 2, 4, ...
  void vote_on_counts(const std::vector<uint32_t>& votes, std::byte* message) {
    // Without presence, every block has all votes of a node, so the node's planes of presence are all ones or all
    // zeros.
    const auto blocks = static_cast<size_t>(presence_bytes(part_.signs));
    const std::vector<std::byte> none(blocks), all(blocks, std::byte{0xff});
    std::vector<std::byte> result_presence(part_.extra ? 0 : blocks);
    std::vector<const std::byte*> ballots, presence;
    std::vector<uint32_t> weights;
    for (int m = 0; m < nodes_; ++m) {
      const uint32_t of_node = votes[static_cast<size_t>(m)];
      std::byte* const counts = counts_in_ + m * counts_.bytes();
      for (int j = 0; of_node && j < counts_.planes; ++j) {
        ballots.push_back(counts_.plane(counts, j));
        presence.push_back(part_.extra ? counts_.presence_plane(counts, j) : (of_node >> j & 1 ? all : none).data());
        weights.push_back(uint32_t{1} << j);
      }
    }
    VoteItem item = vote_into(call_, part_, first_, count_, message);
    item.ballots = ballots, item.presence = presence, item.weights = weights;
    if (!part_.extra) item.result_presence = result_presence.data();
    call_.backend.vote_signs(item, call_.threads, nullptr);
  }

  ExchangeCall call_;
  bool counts_votes_;                 // true with two levels
  int ranks_, nodes_, local_, node_;  // ranks of a node; nodes; this rank within its node; its node
  int64_t first_ = 0, count_ = 0;     // the signs of this rank's part
  ShardLayout part_, shard_;
  CountsLayout counts_;
  std::byte *send_ = nullptr, *ballots_ = nullptr, *counts_out_ = nullptr, *counts_in_ = nullptr, *results_ = nullptr;
};

}  // namespace

void Exchange::send_early(const wire::Announcement&, std::byte*) {
  fail(ErrorKind::kInternal, "ballots of this exchange cannot be sent early");
}

std::unique_ptr<Exchange> make_two_phase(const ExchangeCall& call) { return std::make_unique<TwoPhase>(call); }

}  // namespace lowtide
