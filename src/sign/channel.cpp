#include "sign/channel.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <vector>

#include "core/error.h"
#include "sign/exchange.h"
#include "sign/rounds.h"
#include "sign/wire.h"

namespace lowtide {
namespace {

void check_transport(const Transport* transport) {
  LT_REQUIRE(transport, "got no transport");
  LT_REQUIRE(transport->size() >= 1 && transport->rank() >= 0 && transport->rank() < transport->size(),
             "got a transport of rank %d of %d, wanted 0 <= rank < size", transport->rank(), transport->size());
}

}  // namespace

Channel::Channel(std::shared_ptr<Transport> inside, std::shared_ptr<Transport> between)
    : inside_(std::move(inside)), between_(std::move(between)) {
  check_transport(inside_.get());
  if (between_) check_transport(between_.get());
  LT_REQUIRE(int64_t{inside_->size()} * nodes() <= std::numeric_limits<int32_t>::max(), "got %d nodes of %d ranks",
             nodes(), inside_->size());
  rank_ = node() * inside_->size() + inside_->rank();
  size_ = nodes() * inside_->size();
}

void Channel::transfer(Level level, Call call, const std::byte* send, std::byte* receive, int64_t bytes,
                       int64_t* sent) {
  if (bytes == 0) return;
  if (!failure_.empty())
    throw TransportError(
        "the transport failed in an earlier call, so ranks may be in different calls; make a new transport and a new "
        "collective. The failure was: " +
        failure_);
  Transport& transport = *(level == Level::kInside ? inside_ : between_);
  failure_ = "unknown exception";
  try {
    if (transport.size() == 1)
      std::memcpy(receive, send, static_cast<size_t>(bytes));
    else
      (transport.*call)(send, receive, bytes);
    *sent += (transport.size() - 1) * bytes;
  } catch (const TransportError& e) {
    failure_ = e.what();
    if (!two_level()) throw;
    std::vector<int> ranks = e.ranks();
    for (int& r : ranks) r = level == Level::kInside ? node() * inside_size() + r : r * inside_size() + inside_rank();
    failure_ = (level == Level::kInside ? "inside the node: " : "between nodes: ") + failure_;
    throw TransportError(failure_, ranks, e.os_error());
  } catch (const std::exception& e) {
    failure_ = e.what();
    throw;
  }
  failure_.clear();
}

void Channel::gather_records(const void* record, std::byte* all) {
  const auto gather = [&](Level level, const void* send, std::byte* receive, int64_t bytes) {
    transfer(level, &Transport::all_gather, static_cast<const std::byte*>(send), receive, bytes, &traffic_.control);
  };
  // Gather the node's records first and then the records of all nodes; the ranks of a node are consecutive.
  if (!two_level()) return gather(Level::kInside, record, all, wire::kRecordBytes);
  std::vector<std::byte> of_node(static_cast<size_t>(inside_size() * wire::kRecordBytes));
  gather(Level::kInside, record, of_node.data(), wire::kRecordBytes);
  gather(Level::kBetween, of_node.data(), all, static_cast<int64_t>(of_node.size()));
}

void Channel::all_to_all(Level level, const std::byte* send, std::byte* receive, int64_t bytes_each, int64_t control) {
  int64_t sent = 0;
  transfer(level, &Transport::all_to_all, send, receive, bytes_each, &sent);
  const int64_t of_control = bytes_each ? sent / bytes_each * control : 0;
  traffic_.control += of_control, traffic_.payload += sent - of_control;
}

void Channel::all_gather(Level level, const std::byte* send, std::byte* receive, int64_t bytes) {
  transfer(level, &Transport::all_gather, send, receive, bytes, &traffic_.payload);
}

Transport::~Transport() = default;

CallbackTransport::CallbackTransport(int rank, int size, Call all_to_all, Call all_gather)
    : rank_(rank), size_(size), all_to_all_(std::move(all_to_all)), all_gather_(std::move(all_gather)) {
  LT_REQUIRE(size >= 1 && rank >= 0 && rank < size, "got rank %d of %d, wanted 0 <= rank < size", rank, size);
  LT_REQUIRE(all_to_all_ && all_gather_, "got no %s", all_to_all_ ? "all_gather" : "all_to_all");
}

void CallbackTransport::all_to_all(const std::byte* send, std::byte* receive, int64_t bytes_each) {
  all_to_all_(send, receive, bytes_each);
}

void CallbackTransport::all_gather(const std::byte* send, std::byte* receive, int64_t bytes) {
  all_gather_(send, receive, bytes);
}

SignAlgorithm faster(const Cost& cost, int ranks, int64_t bytes) {
  const double more = (ranks - 1) * (1 - 2.0 / ranks) * static_cast<double>(bytes);
  return ranks == 1 || more < cost.latency_s * cost.bytes_per_s ? SignAlgorithm::kOnePhase : SignAlgorithm::kTwoPhase;
}

Cost measure(Channel& channel) {
  constexpr int kTimes = 3;  // the best time counts, because the first is often slow
  // A rank sends the same amount for any number of ranks, unless messages would become too small to show a rate.
  const int64_t bytes = std::max<int64_t>((256 << 10) / std::max(channel.size() - 1, 1), 8 << 10);
  wire::Measurement mine;
  gather_measurements(channel, mine);  // after this, all ranks are here
  std::vector<std::byte> small(1), large(static_cast<size_t>(bytes)), all(static_cast<size_t>(bytes * channel.size()));
  double latency = 0, busy = 0;
  for (int i = 0; i < kTimes; ++i) {
    double seconds[2] = {};
    Stopwatch watch;
    channel.all_gather(Channel::Level::kInside, small.data(), all.data(), 1);
    watch.lap(&seconds[0]);
    channel.all_gather(Channel::Level::kInside, large.data(), all.data(), bytes);
    watch.lap(&seconds[1]);
    latency = i ? std::min(latency, seconds[0]) : seconds[0];
    busy = i ? std::min(busy, seconds[1]) : seconds[1];
  }
  constexpr double kShortest = 1e-9;
  mine.latency_s = std::max(latency, kShortest);
  mine.bytes_per_s = static_cast<double>(bytes * (channel.size() - 1)) / std::max(busy - latency, kShortest);
  Cost agreed{mine.latency_s, mine.bytes_per_s};
  for (const wire::Measurement& each : gather_measurements(channel, mine)) {
    agreed.latency_s = std::max(agreed.latency_s, each.latency_s);
    agreed.bytes_per_s = std::min(agreed.bytes_per_s, each.bytes_per_s);
  }
  return agreed;
}

}  // namespace lowtide
