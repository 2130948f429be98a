// Implements ThreadGroup, whose ranks are threads. Calls with the same number meet in a Meeting, which owns copies of
// the ranks' messages, so a rank that gives up can release its buffers. The Meeting is destroyed when the last rank has
// taken its share.
#include <condition_variable>
#include <cstring>
#include <map>
#include <mutex>
#include <utility>

#include "core/error.h"
#include "lowtide/sign_collective.h"
#include "sign/channel.h"

namespace lowtide {
namespace {

struct Meeting {
  struct Sent {
    bool here = false, gather = false;
    int64_t bytes = 0;  // for each receiver
    std::vector<std::byte> data;
  };
  std::vector<Sent> of;
  int here = 0, taken = 0;
};

struct Death {
  int64_t call = -1;  // -1: alive
  bool after_sending = false;
};

}  // namespace

struct ThreadGroup::Shared {
  Shared(int ranks, std::chrono::milliseconds limit)
      : size(ranks), timeout(limit), calls(static_cast<size_t>(ranks)), deaths(static_cast<size_t>(ranks)) {}

  const int size;
  const std::chrono::milliseconds timeout;
  std::mutex mutex;  // guards everything up to hook_mutex, and the meetings
  std::condition_variable changed;
  std::vector<int64_t> calls;
  std::vector<Death> deaths;
  std::map<int64_t, std::shared_ptr<Meeting>> meetings;
  std::mutex hook_mutex;  // guards the hook, also while the hook runs
  std::function<void(Message&)> hook;

  void call(int rank, bool gather, const std::byte* send, std::byte* receive, int64_t bytes);
  void deliver(const Meeting& meeting, int64_t call, int receiver, bool gather, std::byte* out, int64_t bytes);
};

void ThreadGroup::Shared::call(int rank, bool gather, const std::byte* send, std::byte* receive, int64_t bytes) {
  LT_REQUIRE(bytes >= 0, "got %lld bytes to send", ll(bytes));
  const auto me = static_cast<size_t>(rank);
  const char* const what = gather ? "all_gather" : "all_to_all";
  const auto died = [&](int64_t call) {
    throw TransportError(format("rank %d was killed at call %lld", rank, ll(call)), {rank});
  };
  std::unique_lock lock(mutex);
  const int64_t number = calls[me]++;
  const bool dead = deaths[me].call >= 0 && number >= deaths[me].call;
  if (dead && (number > deaths[me].call || !deaths[me].after_sending)) died(number);
  std::shared_ptr<Meeting>& place = meetings[number];
  if (!place) place = std::make_shared<Meeting>(), place->of.resize(calls.size());
  const std::shared_ptr<Meeting> meeting = place;
  Meeting::Sent& mine = meeting->of[me];
  mine.data.assign(send, send + (gather ? bytes : bytes * size));
  mine.gather = gather, mine.bytes = bytes, mine.here = true;
  ++meeting->here;
  changed.notify_all();
  if (dead) died(number);
  if (!changed.wait_for(lock, timeout, [&] { return meeting->here == size; })) {
    std::vector<int> missing;
    for (int r = 0; r < size; ++r)
      if (!meeting->of[static_cast<size_t>(r)].here) missing.push_back(r);
    throw TransportError(format("%s did not come to %s (call %lld) within %lld ms", name_ranks(missing).c_str(), what,
                                ll(number), ll(timeout.count())),
                         missing, ETIMEDOUT);
  }
  lock.unlock();
  for (int r = 0; r < size; ++r) {
    const Meeting::Sent& sent = meeting->of[static_cast<size_t>(r)];
    if (sent.gather != gather || sent.bytes != bytes)
      throw TransportError(
          format("rank %d made call %lld with %s of %lld bytes, rank %d with %s of %lld", r, ll(number),
                 sent.gather ? "all_gather" : "all_to_all", ll(sent.bytes), rank, what, ll(bytes)),
          {}, EPROTO);
  }
  deliver(*meeting, number, rank, gather, receive, bytes);
  lock.lock();
  if (++meeting->taken == size) meetings.erase(number);
}

void ThreadGroup::Shared::deliver(const Meeting& meeting, int64_t call, int receiver, bool gather, std::byte* out,
                                  int64_t bytes) {
  for (int sender = 0; sender < size; ++sender, out += bytes) {
    const std::byte* from = meeting.of[static_cast<size_t>(sender)].data.data() + (gather ? 0 : receiver * bytes);
    if (bytes) std::memcpy(out, from, static_cast<size_t>(bytes));
    const std::lock_guard lock(hook_mutex);
    if (!hook) continue;
    Message message{sender, receiver, call, gather, out, bytes};
    hook(message);
    const int64_t left = std::min(bytes, std::max<int64_t>(message.bytes, 0));
    std::memset(out + left, 0, static_cast<size_t>(bytes - left));
  }
}

ThreadGroup::ThreadGroup(int size, std::chrono::milliseconds timeout) {
  LT_REQUIRE(size >= 1, "got %d ranks, wanted 1 or more", size);
  LT_REQUIRE(timeout.count() > 0, "got a timeout of %lld ms, wanted more than 0", ll(timeout.count()));
  shared_ = std::make_shared<Shared>(size, timeout);
}

ThreadGroup::~ThreadGroup() = default;

std::shared_ptr<Transport> ThreadGroup::transport(int rank) {
  const auto call = [shared = shared_, rank](bool gather) {
    return [shared, rank, gather](const std::byte* send, std::byte* receive, int64_t bytes) {
      shared->call(rank, gather, send, receive, bytes);
    };
  };
  return std::make_shared<CallbackTransport>(rank, shared_->size, call(false), call(true));
}

void ThreadGroup::kill(int rank, int64_t call, bool after_sending) {
  LT_REQUIRE(rank >= 0 && rank < shared_->size && call >= 0, "got rank %d and call %lld", rank, ll(call));
  const std::lock_guard lock(shared_->mutex);
  shared_->deaths[static_cast<size_t>(rank)] = {call, after_sending};
}

void ThreadGroup::on_message(std::function<void(Message&)> hook) {
  const std::lock_guard lock(shared_->hook_mutex);
  shared_->hook = std::move(hook);
}

}  // namespace lowtide
