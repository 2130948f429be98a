// A device for tests of asynchronous code: streams, events, copies and kernels, in one thread. Nothing runs when it is
// queued. Operations run when the host waits, in a seeded random order that lets streams lag as far as is legal, and
// memory that nobody may read holds poison. So code that lacks a wait computes garbage under some seeds, and the race
// checker names the two operations under every seed.
#pragma once

#include <new>
#include <random>

#include "support/fake/race_checker.h"
#include "support/test.h"

namespace lowtide::fake {

// Aligns to pages, as drivers do.
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

  // A stream runs its operations in order; each takes cost / rate seconds of the virtual clock, or no time with rate 0.
  int add_stream(std::string name, double bytes_per_second = 0);
  int add_memory(std::string name, int64_t capacity);
  int new_event();

  // Returns a region of poison. Throws kOutOfMemory with the number of bytes if it exceeds the memory's capacity.
  int allocate(int memory, int64_t bytes);
  // Frees at once. The race checker reports a race with every operation on the region for which the host has not
  // waited.
  void free(int region);
  int64_t used(int memory) const { return memories_.at(static_cast<size_t>(memory)).used; }
  int64_t peak(int memory) const { return memories_.at(static_cast<size_t>(memory)).peak; }

  // The host accesses memory at once; the race checker checks that.
  void host_write(const Span& to, const uint8_t* from);
  std::vector<uint8_t> host_read(const Span& from);
  void host_touches(const Span& span, bool writes);

  // Copies in two or three fragments, in random order; work of other streams may run between them.
  void copy(int stream, std::string name, const Span& to, const Span& from);
  // Calls run() once, late; it touches the declared spans through data(). Costs cost_bytes at the stream's rate.
  void launch(int stream, std::string name, const std::vector<Span>& reads, const std::vector<Span>& writes,
              int64_t cost_bytes, std::function<void()> run);
  // An event marks the work queued on the stream so far. It may be recorded repeatedly; a wait refers to the last
  // record before the wait, and returns at once if there is none.
  void record(int event, int stream);
  void wait(int stream, int event);
  // Returns true if such a wait would order something that is not yet ordered.
  bool wait_matters(int stream, int event) const;

  void host_wait(int event);  // runs what is needed, and sometimes more
  void synchronize();         // runs everything
  // Returns true if the last record has happened, which the host has then seen. Runs nothing.
  bool has_happened(int event);
  // Runs some of the queued work, perhaps part of a copy, and never the rest.
  void lose();

  // Makes the n-th later allocation, copy, launch, record or wait (from 1) throw kIo without effect. 0: none.
  void fail_at(int64_t n) { fail_at_ = n == 0 ? 0 : operations_ + n; }
  int64_t operations() const { return operations_; }

  // The virtual time, in seconds, of the last thing that the host has seen. Queueing takes no time.
  double now() const { return host_seconds_; }

  uint8_t* data(const Span& span);  // for run(); not checked for races
  const RaceChecker& race_checker() const { return checker_; }

 private:
  struct Operation {
    enum Kind { kWork, kMark, kWait } kind = kWork;
    size_t ticket = 0;          // for kMark and kWait
    std::vector<Span> poisons;  // bytes written but not read, which become poison as soon as the operation may start
    std::vector<std::function<void()>> parts;
    size_t next_part = 0;
  };
  struct Stream {
    std::string name;
    double rate;
    double seconds = 0;  // when all queued work will have happened
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
    PageBytes bytes;  // kept after a free, so that a late operation finds poison instead of crashing
  };

  static int actor(int stream) { return stream + 1; }  // in the race checker, where the host is 0
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
  std::vector<size_t> favour_;  // streams by favour: the first that can run does
  std::vector<Memory> memories_;
  std::deque<Region> regions_;
  std::vector<int64_t> events_;  // the ticket of the last record, -1 for none
  std::vector<Ticket> tickets_;
  int64_t operations_ = 0, fail_at_ = 0;
  double host_seconds_ = 0;
};

}  // namespace lowtide::fake
