#include "support/fake/fake_device.h"

#include "core/error.h"
#include "support/test.h"

namespace lowtide::fake {
namespace {

constexpr int kHost = 0;
constexpr uint8_t kAllocated = 0xA5, kPending = 0xDB, kFreed = 0xDF;

}  // namespace

FakeDevice::FakeDevice(uint64_t seed) : random_(seed) { checker_.add_actor(); }

int FakeDevice::add_stream(std::string name, double bytes_per_second) {
  checker_.add_actor();
  streams_.push_back({std::move(name), bytes_per_second, 0, {}});
  favour_.push_back(favour_.size());
  std::shuffle(favour_.begin(), favour_.end(), random_);
  return static_cast<int>(streams_.size()) - 1;
}

int FakeDevice::add_memory(std::string name, int64_t capacity) {
  memories_.push_back({std::move(name), capacity});
  return static_cast<int>(memories_.size()) - 1;
}

int FakeDevice::new_event() {
  events_.push_back(-1);
  return static_cast<int>(events_.size()) - 1;
}

int FakeDevice::allocate(int memory, int64_t bytes) {
  count_operation("allocate");
  Memory& m = memories_.at(static_cast<size_t>(memory));
  if (bytes > m.capacity - m.used)
    fail(ErrorKind::kOutOfMemory, "could not allocate %lld bytes of %s memory; %lld of %lld are free",
         static_cast<long long>(bytes), m.name.c_str(), static_cast<long long>(m.capacity - m.used),
         static_cast<long long>(m.capacity));
  m.used += bytes;
  m.peak = std::max(m.peak, m.used);
  regions_.push_back({static_cast<size_t>(memory), true, PageBytes(static_cast<size_t>(bytes), kAllocated)});
  return static_cast<int>(regions_.size()) - 1;
}

void FakeDevice::free(int region) {
  Region& r = regions_.at(static_cast<size_t>(region));
  const Span all{region, 0, static_cast<int64_t>(r.bytes.size())};
  require_live(all, "free");
  checker_.begin_operation(kHost);
  checker_.access(kHost, "free", all, true);
  std::fill(r.bytes.begin(), r.bytes.end(), kFreed);
  r.live = false;
  memories_[r.memory].used -= all.bytes;
}

void FakeDevice::host_write(const Span& to, const uint8_t* from) {
  require_live(to, "host write");
  checker_.begin_operation(kHost);
  checker_.access(kHost, "host write", to, true);
  std::copy_n(from, to.bytes, data(to));
}

std::vector<uint8_t> FakeDevice::host_read(const Span& from) {
  require_live(from, "host read");
  checker_.begin_operation(kHost);
  checker_.access(kHost, "host read", from, false);
  return {data(from), data(from) + from.bytes};
}

void FakeDevice::host_touches(const Span& span, bool writes) {
  require_live(span, "host");
  checker_.begin_operation(kHost);
  checker_.access(kHost, writes ? "host write" : "host read", span, writes);
}

void FakeDevice::copy(int stream, std::string name, const Span& to, const Span& from) {
  count_operation(name);
  LT_REQUIRE(to.bytes == from.bytes && !to.overlaps(from),
             "%s: got %lld bytes to copy into %lld, wanted as many of each and no overlap", name.c_str(),
             static_cast<long long>(from.bytes), static_cast<long long>(to.bytes));
  std::vector<int64_t> cuts{0, to.bytes};
  for (size_t i = 0, n = 1 + below(2); i < n; ++i)
    cuts.push_back(static_cast<int64_t>(below(static_cast<size_t>(to.bytes) + 1)));
  std::sort(cuts.begin(), cuts.end());
  Operation operation;
  for (size_t i = 0; i + 1 < cuts.size(); ++i)
    operation.parts.push_back([this, to, from, at = cuts[i], bytes = cuts[i + 1] - cuts[i]] {
      if (bytes) std::memcpy(data(to) + at, data(from) + at, static_cast<size_t>(bytes));
    });
  std::shuffle(operation.parts.begin(), operation.parts.end(), random_);
  enqueue(stream, name, {from}, {to}, to.bytes, std::move(operation));
}

void FakeDevice::launch(int stream, std::string name, const std::vector<Span>& reads, const std::vector<Span>& writes,
                        int64_t cost_bytes, std::function<void()> run) {
  count_operation(name);
  Operation operation;
  operation.parts.push_back(std::move(run));
  enqueue(stream, name, reads, writes, cost_bytes, std::move(operation));
}

void FakeDevice::record(int event, int stream) {
  count_operation("record");
  Stream& s = streams_.at(static_cast<size_t>(stream));
  events_.at(static_cast<size_t>(event)) = static_cast<int64_t>(tickets_.size());
  checker_.join(actor(stream), checker_.clock(kHost));
  tickets_.push_back(
      {static_cast<size_t>(stream), false, std::max(s.seconds, host_seconds_), checker_.clock(actor(stream))});
  s.queue.push_back({Operation::kMark, tickets_.size() - 1, {}, {}});
  settle();
}

void FakeDevice::wait(int stream, int event) {
  count_operation("wait");
  Stream& s = streams_.at(static_cast<size_t>(stream));
  const int64_t current = events_.at(static_cast<size_t>(event));
  if (current < 0) return;
  const Ticket& ticket = tickets_[static_cast<size_t>(current)];
  checker_.join(actor(stream), ticket.clock);
  s.seconds = std::max(s.seconds, ticket.seconds);
  s.queue.push_back({Operation::kWait, static_cast<size_t>(current), {}, {}});
  settle();
}

bool FakeDevice::wait_matters(int stream, int event) const {
  const int64_t current = events_.at(static_cast<size_t>(event));
  if (current < 0) return false;
  const RaceChecker::Clock& clock = tickets_[static_cast<size_t>(current)].clock;
  const RaceChecker::Clock &mine = checker_.clock(actor(stream)), &host = checker_.clock(kHost);
  for (size_t i = 0; i < clock.size(); ++i)
    if (clock[i] > std::max(mine[i], host[i])) return true;  // what the host has seen precedes what it queues
  return false;
}

void FakeDevice::host_wait(int event) {
  const int64_t current = events_.at(static_cast<size_t>(event));
  if (current < 0) return;
  const size_t ticket = static_cast<size_t>(current);
  const bool only_ancestors = below(2) == 0;
  settle();
  while (!tickets_[ticket].happened) {
    run_one(only_ancestors ? ancestors(ticket) : std::vector<bool>(streams_.size(), true));
    settle();
  }
  checker_.join(kHost, tickets_[ticket].clock);
  host_seconds_ = std::max(host_seconds_, tickets_[ticket].seconds);
}

void FakeDevice::synchronize() {
  const std::vector<bool> all(streams_.size(), true);
  const auto empty = [](const Stream& s) { return s.queue.empty(); };
  for (settle(); !std::all_of(streams_.begin(), streams_.end(), empty); settle()) run_one(all);
  for (size_t i = 0; i < streams_.size(); ++i) {
    checker_.join(kHost, checker_.clock(actor(static_cast<int>(i))));
    host_seconds_ = std::max(host_seconds_, streams_[i].seconds);
  }
}

bool FakeDevice::has_happened(int event) {
  const int64_t current = events_.at(static_cast<size_t>(event));
  if (current < 0) return true;
  settle();
  const Ticket& ticket = tickets_[static_cast<size_t>(current)];
  if (ticket.happened) checker_.join(kHost, ticket.clock);
  return ticket.happened;
}

void FakeDevice::lose() {
  const std::vector<bool> all(streams_.size(), true);
  for (size_t n = below(60); n > 0; --n) {
    settle();
    bool any = false;
    for (size_t i = 0; i < streams_.size(); ++i) any = any || runnable(i);
    if (any) run_one(all);
  }
  for (Stream& stream : streams_) stream.queue.clear();
}

uint8_t* FakeDevice::data(const Span& span) {
  return regions_[static_cast<size_t>(span.region)].bytes.data() + span.begin;
}

void FakeDevice::count_operation(const std::string& name) {
  if (++operations_ == fail_at_)
    fail(ErrorKind::kIo, "injected failure of operation %lld: %s", static_cast<long long>(operations_), name.c_str());
}

void FakeDevice::require_live(const Span& span, const std::string& name) const {
  const Region& region = regions_.at(static_cast<size_t>(span.region));
  LT_REQUIRE(region.live, "%s: region %d has been freed", name.c_str(), span.region);
  LT_REQUIRE(span.begin >= 0 && span.bytes >= 0 && span.end() <= static_cast<int64_t>(region.bytes.size()),
             "%s: got bytes [%lld, %lld) of region %d, which has %zu", name.c_str(), static_cast<long long>(span.begin),
             static_cast<long long>(span.end()), span.region, region.bytes.size());
}

void FakeDevice::enqueue(int stream, const std::string& name, const std::vector<Span>& reads,
                         const std::vector<Span>& writes, int64_t cost_bytes, Operation operation) {
  Stream& s = streams_.at(static_cast<size_t>(stream));
  for (const Span& span : reads) require_live(span, name);
  for (const Span& span : writes) require_live(span, name);
  const int who = actor(stream);
  checker_.join(who, checker_.clock(kHost));
  checker_.begin_operation(who);
  for (const Span& span : reads) checker_.access(who, name, span, false);
  for (const Span& span : writes) {
    checker_.access(who, name, span, true);
    const auto read = [&](const Span& r) { return r.overlaps(span); };
    if (std::none_of(reads.begin(), reads.end(), read)) operation.poisons.push_back(span);
  }
  s.seconds = std::max(s.seconds, host_seconds_) + (s.rate > 0 ? static_cast<double>(cost_bytes) / s.rate : 0);
  s.queue.push_back(std::move(operation));
  settle();
}

// Removes waits and marks from the queues, and poisons the memory that the next operations will write. Poison must not
// come while earlier operations that rightly read the old bytes are still queued, so it comes as soon as the operation
// may start; that is at enqueue if all earlier operations have happened.
void FakeDevice::settle() {
  for (bool changed = true; changed;) {
    changed = false;
    for (Stream& s : streams_) {
      while (!s.queue.empty()) {
        Operation& head = s.queue.front();
        if (head.kind == Operation::kWork) {
          for (const Span& span : head.poisons) std::memset(data(span), kPending, static_cast<size_t>(span.bytes));
          head.poisons.clear();
          break;
        }
        if (head.kind == Operation::kWait && !tickets_[head.ticket].happened) break;
        if (head.kind == Operation::kMark) tickets_[head.ticket].happened = true;
        s.queue.pop_front();
        changed = true;
      }
    }
  }
}

bool FakeDevice::runnable(size_t stream) const {
  const std::deque<Operation>& queue = streams_[stream].queue;
  return !queue.empty() && queue.front().kind == Operation::kWork;
}

// Returns the streams for whose heads the ticket waits, directly or not.
std::vector<bool> FakeDevice::ancestors(size_t ticket) const {
  std::vector<bool> needed(streams_.size(), false);
  for (size_t s = tickets_[ticket].stream; !needed[s];) {
    needed[s] = true;
    const Operation& head = streams_[s].queue.front();  // not empty, because the mark has not happened
    if (head.kind == Operation::kWait) s = tickets_[head.ticket].stream;
  }
  return needed;
}

// Favours a random stream for a random time; the least favoured stream runs only when no other can.
void FakeDevice::run_one(const std::vector<bool>& among) {
  if (below(6) == 0) std::shuffle(favour_.begin(), favour_.end(), random_);
  for (const size_t i : favour_) {
    if (!among[i] || !runnable(i)) continue;
    Operation& head = streams_[i].queue.front();
    head.parts[head.next_part]();
    if (++head.next_part == head.parts.size()) streams_[i].queue.pop_front();
    return;
  }
  fail(ErrorKind::kInternal, "the fake device waits for work that no stream can run");
}

}  // namespace lowtide::fake
