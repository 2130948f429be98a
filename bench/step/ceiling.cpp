// The most that memory gives to a step: the same bytes read and written per element, next to no arithmetic.
//
// A pass reads g, and reads and writes p and up to two states. To every word it adds a number that is 0 at run time, so
// it can run over the contenders' own parameters and gradients, in the pages where they lie, and leave them as they
// are. Widths are bytes per element; n is a multiple of 64.

#include <pthread.h>
#include <sched.h>
#include <sys/mman.h>

#include <atomic>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

namespace {

typedef uint64_t Line __attribute__((vector_size(64), aligned(64)));  // 64 bytes: 64 elements of width 1

struct Streams {
  Line *p, *s1, *s2;
  const Line* g;
};

volatile uint64_t zero = 0;
volatile uint64_t sink;

template <int W>
inline void add(Line* a, Line x) {
  for (int i = 0; i < W; ++i) a[i] += x;
}

template <int P, int G, int S1, int S2>
void pass(const Streams& a, int64_t first, int64_t last) {
  const Line x = Line{} + zero;
  Line seen{};
  for (int64_t i = first; i < last; ++i) {  // 64 elements each
    for (int k = 0; k < G; ++k) seen |= a.g[i * G + k];
    add<P>(a.p + i * P, x);
    add<S1>(a.s1 + i * S1, x);
    add<S2>(a.s2 + i * S2, x);
  }
  uint64_t all = 0;
  for (int k = 0; k < 8; ++k) all |= seen[k];
  sink = all;
}

using Pass = void (*)(const Streams&, int64_t, int64_t);

Pass find(int p, int g, int s1, int s2) {
  switch (p * 1000 + g * 100 + s1 * 10 + s2) {
    case 4444:
      return pass<4, 4, 4, 4>;  // fp32 AdamW                    28 bytes
    case 4422:
      return pass<4, 4, 2, 2>;  // bf16 state                    20
    case 4411:
      return pass<4, 4, 1, 1>;  // 8-bit state                   16
    case 4410:
      return pass<4, 4, 1, 0>;  // 8-bit state, one moment       14
    case 2244:
      return pass<2, 2, 4, 4>;  // bf16 parameters, fp32 state   22
    case 2222:
      return pass<2, 2, 2, 2>;  // all bf16                      14
    case 2211:
      return pass<2, 2, 1, 1>;  // bf16 parameters, 8-bit state  10
    case 400:
      return pass<0, 4, 0, 0>;  // gradients read once more       4
    case 200:
      return pass<0, 2, 0, 0>;  //                                2
    default:
      return nullptr;
  }
}

// A thread bound to one CPU, kept between passes: the time that it waits for its core stays readable in /proc.
class Helper {
 public:
  explicit Helper(int cpu) {
    std::thread([this, cpu] {
      cpu_set_t set;
      CPU_ZERO(&set);
      CPU_SET(static_cast<size_t>(cpu), &set);
      pthread_setaffinity_np(pthread_self(), sizeof set, &set);
      for (;;) {
        state_.wait(kIdle, std::memory_order_acquire);
        job_();
        state_.store(kIdle, std::memory_order_release);
        state_.notify_all();
      }
    }).detach();
  }

  void start(std::function<void()> job) {
    job_ = std::move(job);
    state_.store(kBusy, std::memory_order_release);
    state_.notify_all();
  }

  void join() { state_.wait(kBusy, std::memory_order_acquire); }

 private:
  static constexpr int kIdle = 0, kBusy = 1;
  std::function<void()> job_;
  std::atomic<int> state_{kIdle};
};

// Never destroyed: the threads run as long as the process.
std::vector<std::unique_ptr<Helper>>& helpers() {
  static auto& all = *new std::vector<std::unique_ptr<Helper>>;
  return all;
}

}  // namespace

extern "C" {

// One pass of `threads` threads, each over one piece. The caller does the first piece where it is; thread k is bound to
// cpus[k], which must be the same at every call. Not to be called by two threads at once. Returns -1 for widths that
// are not built.
int ceiling_pass(void* p, const void* g, void* s1, void* s2, int64_t n, const int* widths, int threads,
                 const int* cpus) {
  const Pass run = find(widths[0], widths[1], widths[2], widths[3]);
  if (run == nullptr) return -1;
  const Streams streams{static_cast<Line*>(p), static_cast<Line*>(s1), static_cast<Line*>(s2),
                        static_cast<const Line*>(g)};
  const int64_t lines = n / 64;
  auto& others = helpers();
  for (int k = static_cast<int>(others.size()) + 1; k < threads; ++k)
    others.push_back(std::make_unique<Helper>(cpus[k]));
  for (int k = 1; k < threads; ++k) {
    others[static_cast<size_t>(k) - 1]->start([=] { run(streams, lines * k / threads, lines * (k + 1) / threads); });
  }
  run(streams, 0, lines / threads);
  for (int k = 1; k < threads; ++k) others[static_cast<size_t>(k) - 1]->join();
  return 0;
}

// Memory in huge pages, where the system grants them; every byte is written. Null if there are none.
void* ceiling_allocate(int64_t bytes) {
  constexpr uintptr_t kHuge = uintptr_t{2} << 20;
  const size_t size = (static_cast<size_t>(bytes) + kHuge - 1) / kHuge * kHuge;
  void* raw = mmap(nullptr, size + kHuge, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (raw == MAP_FAILED) return nullptr;
  const uintptr_t start = reinterpret_cast<uintptr_t>(raw);
  const uintptr_t aligned = (start + kHuge - 1) / kHuge * kHuge;
  if (aligned > start) munmap(raw, aligned - start);
  if (start + kHuge > aligned) munmap(reinterpret_cast<void*>(aligned + size), start + kHuge - aligned);
  void* data = reinterpret_cast<void*>(aligned);
  madvise(data, size, MADV_HUGEPAGE);
  std::memset(data, 1, size);
  return data;
}

void ceiling_free(void* data, int64_t bytes) {
  constexpr size_t kHuge = size_t{2} << 20;
  if (data != nullptr) munmap(data, (static_cast<size_t>(bytes) + kHuge - 1) / kHuge * kHuge);
}

}  // extern "C"
