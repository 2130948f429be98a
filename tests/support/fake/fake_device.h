// A device for tests of asynchronous code: streams, events, copies and kernels, in one thread. Nothing runs when it is
// queued. Operations run when the host waits, in a seeded random order that lets streams lag as far as is legal, and
// memory nobody has a right to read holds poison: code that lacks a wait computes garbage under some seeds, and the
// race checker names the two operations under every seed.
#pragma once

#include <new>
#include <random>

#include "support/fake/race_checker.h"
#include "support/test.h"

namespace lowtide::fake {

// As drivers give it: aligned to pages.
template <class T>
struct PageAllocator {
  using value_type = T;
  static constexpr std::align_val_t kPage{4096};
  PageAllocator() = default;
  template <class U>
  explicit PageAllocator(const PageAllocator<U>&) {}
  T* allocate(size_t n) { return static_cast<T*>(::operator new(n * sizeof(T), kPage)); }
  void deallocate(T* at, size_t) { ::operator delete(at, kPage); }
  bool operator==(const PageAllocator&) const { return true; }
};
using PageBytes = std::vector<uint8_t, PageAllocator<uint8_t>>;

class FakeDevice {
 public:
  explicit FakeDevice(uint64_t seed);
  FakeDevice(const FakeDevice&) = delete;  // queued work refers to the device
  FakeDevice& operator=(const FakeDevice&) = delete;

  // Runs its operations in order, each taking cost / rate seconds of the virtual clock; rate 0: no time.
  int add_stream(std::string name, double bytes_per_second = 0);
  int add_memory(std::string name, int64_t capacity);
  int new_event();

  // A region of poison. Throws kOutOfMemory, naming the bytes, above the memory's capacity.
  int allocate(int memory, int64_t bytes);
  // At once, as seen by the race checker: a race with every operation on the region the host has not waited for.
  void free(int region);
  int64_t used(int memory) const { return memories_.at(static_cast<size_t>(memory)).used; }
  int64_t peak(int memory) const { return memories_.at(static_cast<size_t>(memory)).peak; }

  // Accesses of the host, at once, checked for races.
  void host_write(const Span& to, const uint8_t* from);
  std::vector<uint8_t> host_read(const Span& from);
  void host_touches(const Span& span, bool writes);

  // In two or three fragments, in random order, with work of other streams between them.
  void copy(int stream, std::string name, const Span& to, const Span& from);
  // run() is called once, late, and touches what is declared, through data(). Costs cost_bytes of the stream's rate.
  void launch(int stream, std::string name, const std::vector<Span>& reads, const std::vector<Span>& writes,
              int64_t cost_bytes, std::function<void()> run);
  // An event marks the work that is queued on the stream so far. It may be recorded any number of times; a wait means
  // the last record before the wait. A wait for an event that was never recorded returns at once.
  void record(int event, int stream);
  void wait(int stream, int event);
  // Whether such a wait would order anything that is not ordered already.
  bool wait_matters(int stream, int event) const;

  void host_wait(int event);  // runs what is needed, and sometimes more
  void synchronize();         // runs all
  // Whether its last record has happened: the host has then seen that. Runs nothing.
  bool has_happened(int event);
  // Runs some of what is queued, part of a copy perhaps, and never the rest.
  void lose();

  // The n-th of the allocations, copies, launches, records and waits from now on (from 1) throws kIo and does nothing
  // else; the others work. 0: none.
  void fail_at(int64_t n) { fail_at_ = n == 0 ? 0 : operations_ + n; }
  int64_t operations() const { return operations_; }

  // Seconds on the virtual clock when the host has seen what it waited for. Queueing takes no time.
  double now() const { return host_seconds_; }

  uint8_t* data(const Span& span);  // for run(): not checked for races
  const RaceChecker& race_checker() const { return checker_; }

 private:
  struct Operation {
    enum Kind { kWork, kMark, kWait } kind = kWork;
    size_t ticket = 0;          // of kMark, kWait
    std::vector<Span> poisons;  // written without being read: poison from the first moment the operation may start
    std::vector<std::function<void()>> parts;
    size_t next_part = 0;
  };
  struct Stream {
    std::string name;
    double rate;
    double seconds = 0;  // when all that is queued will have happened
    std::deque<Operation> queue;
  };
  struct Ticket {  // one record of an event
    size_t stream;
    bool happened = false;
    double seconds;
    RaceChecker::Clock clock;
  };
  struct Memory {
    std::string name;
    int64_t capacity, used = 0, peak = 0;
  };
  struct Region {
    size_t memory;
    bool live = true;
    PageBytes bytes;  // kept when freed: a late operation must find poison, not a crash
  };

  static int actor(int stream) { return stream + 1; }  // in the race checker; the host is 0
  void count_operation(const std::string& name);
  void require_live(const Span& span, const std::string& name) const;
  void enqueue(int stream, const std::string& name, const std::vector<Span>& reads, const std::vector<Span>& writes,
               int64_t cost_bytes, Operation operation);
  void settle();
  bool runnable(size_t stream) const;
  std::vector<bool> ancestors(size_t ticket) const;
  void run_one(const std::vector<bool>& among);
  size_t below(size_t n) { return static_cast<size_t>(random_() % n); }

  std::mt19937_64 random_;
  RaceChecker checker_;
  std::vector<Stream> streams_;
  std::vector<size_t> favour_;  // streams, the first runs while it can
  std::vector<Memory> memories_;
  std::deque<Region> regions_;
  std::vector<int64_t> events_;  // the ticket of the last record, -1 for none
  std::vector<Ticket> tickets_;
  int64_t operations_ = 0, fail_at_ = 0;
  double host_seconds_ = 0;
};

}  // namespace lowtide::fake
