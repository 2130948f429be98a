#include "sign/channel.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <vector>

#include "core/error.h"
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

template <class Call>
void Channel::run(Level level, Call&& call) {
  if (!failure_.empty())
    throw TransportError(
        "the transport failed in an earlier call, so ranks may be in different calls; make a new transport and a new "
        "collective. The failure was: " +
        failure_);
  Transport& transport = *(level == Level::kInside ? inside_ : between_);
  failure_ = "unknown exception";
  try {
    call(transport);
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

void Channel::gather(Level level, const std::byte* send, std::byte* receive, int64_t bytes, int64_t* sent) {
  if (bytes == 0) return;
  run(level, [&](Transport& transport) {
    if (transport.size() == 1) {
      std::memcpy(receive, send, static_cast<size_t>(bytes));
      return;
    }
    transport.all_gather(send, receive, bytes);
    *sent += (transport.size() - 1) * bytes;
  });
}

void Channel::gather_records(const void* record, std::byte* all) {
  // First the records of the node, then those of all nodes: the ranks of a node follow each other.
  const int64_t of_node = inside_size() * wire::kRecordBytes;
  const auto* mine = static_cast<const std::byte*>(record);
  if (!two_level()) return gather(Level::kInside, mine, all, wire::kRecordBytes, &traffic_.control);
  std::vector<std::byte> node_records(static_cast<size_t>(of_node));
  gather(Level::kInside, mine, node_records.data(), wire::kRecordBytes, &traffic_.control);
  gather(Level::kBetween, node_records.data(), all, of_node, &traffic_.control);
}

void Channel::all_to_all(Level level, const std::byte* send, std::byte* receive, int64_t bytes_each) {
  run(level, [&](Transport& transport) {
    if (transport.size() == 1) {
      std::memcpy(receive, send, static_cast<size_t>(bytes_each));
      return;
    }
    transport.all_to_all(send, receive, bytes_each);
    traffic_.payload += (transport.size() - 1) * bytes_each;
  });
}

void Channel::all_gather(Level level, const std::byte* send, std::byte* receive, int64_t bytes) {
  gather(level, send, receive, bytes, &traffic_.payload);
}

}  // namespace lowtide
