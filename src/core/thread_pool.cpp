#include "core/thread_pool.h"

#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <cfenv>
#include <cstdint>
#include <mutex>
#include <system_error>
#include <thread>
#include <vector>

#include "core/cores.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace lowtide {
namespace {

// Sets default rounding and denormals for one scope. The host program may have set flush-to-zero in its threads, which
// would change the bits of a step.
class DefaultFloatingPoint {
 public:
  DefaultFloatingPoint() {
#if defined(__x86_64__)
    saved_ = _mm_getcsr();
    _mm_setcsr(0x1f80);
#else
    std::fegetenv(&saved_);
    std::fesetenv(FE_DFL_ENV);
#endif
  }
  ~DefaultFloatingPoint() {
#if defined(__x86_64__)
    _mm_setcsr(saved_);
#else
    std::fesetenv(&saved_);
#endif
  }

 private:
#if defined(__x86_64__)
  unsigned saved_;
#else
  std::fenv_t saved_;
#endif
};

// Moves a thread off the given core. A thread woken from sleep often lands on the waker's core, or starts bound to it,
// and would share it with the caller.
void leave_core(int core) {
  if (core < 0 || current_core() != core) return;
  CoreSet others = process_cores();
  others.reset(static_cast<size_t>(core));
  if (others.any()) keep_to(others);
}

class ThreadPool {
 public:
  // Returns false if the pool is busy.
  bool run(int threads, const std::function<void(int)>& job) {
    threads = std::min(threads, most_threads_);
    const std::unique_lock lock(mutex_, std::try_to_lock);
    if (!lock) return false;
    grow(threads - 1);
    const int helpers = std::min({threads - 1, static_cast<int>(workers_.size()), (1 << kHelperBits) - 1});
    job_ = &job;
    caller_core_ = current_core();
    running_.store(helpers, std::memory_order_relaxed);
    const uint64_t next = (signal_.load(std::memory_order_relaxed) >> kHelperBits) + 1;
    signal_.store(next << kHelperBits | static_cast<uint64_t>(helpers), std::memory_order_release);
    signal_.notify_all();
    job(0);
    // Pieces are small: the others finish within microseconds of this thread, so spin before sleeping.
    for (int spins = 0; running_.load(std::memory_order_acquire) > 0 && spins < 20000; ++spins) {
#if defined(__x86_64__)
      _mm_pause();
#endif
    }
    for (int left = running_.load(std::memory_order_acquire); left > 0; left = running_.load(std::memory_order_acquire))
      running_.wait(left, std::memory_order_acquire);
    return true;
  }

 private:
  void grow(int count) {
    try {
      while (static_cast<int>(workers_.size()) < count) {
        const int index = static_cast<int>(workers_.size());
        const uint64_t seen = signal_.load(std::memory_order_relaxed);
        workers_.emplace_back([this, index, seen] { work(index, seen); });
        workers_.back().detach();
      }
    } catch (const std::system_error&) {
      // No more threads can be created: continue with the existing ones.
    }
  }

  void work(int index, uint64_t seen) {
    for (;;) {
      signal_.wait(seen, std::memory_order_acquire);
      seen = signal_.load(std::memory_order_acquire);
      if (index >= static_cast<int>(seen & ((uint64_t{1} << kHelperBits) - 1))) continue;
      leave_core(caller_core_);
      (*job_)(index + 1);
      if (running_.fetch_sub(1, std::memory_order_release) == 1) running_.notify_one();
    }
  }

  static constexpr int kHelperBits = 16;
  // More threads would only wait for each other, and would live as long as the process. The minimum of eight serves
  // tests of the order of pieces, which need more threads than a small machine has cores.
  const int most_threads_ = std::max(8, available_threads());

  std::mutex mutex_;
  std::vector<std::thread> workers_;
  // Job number << kHelperBits | helper count. One word holds both, so that a late worker cannot pair one job's number
  // with another's count.
  std::atomic<uint64_t> signal_{0};
  std::atomic<int> running_{0};
  // The caller writes these before signal_; the job's helpers read them, and the caller waits for the helpers.
  const std::function<void(int)>* job_ = nullptr;
  int caller_core_ = -1;
};

std::atomic<ThreadPool*> pool_instance{nullptr};

// The pool is never destroyed: its detached threads may outlive every static object. A forked child has none of the
// threads and starts with a new pool.
ThreadPool& pool() {
  static const bool once = [] {
    pool_instance.store(new ThreadPool);
    pthread_atfork(nullptr, nullptr, [] { pool_instance.store(new ThreadPool); });
    return true;
  }();
  (void)once;
  return *pool_instance.load(std::memory_order_acquire);
}

}  // namespace

int available_threads() {
  const CoreSet cores = process_cores();
  const size_t known = cores.any() ? cores.count() : std::thread::hardware_concurrency();
  return std::max(1, static_cast<int>(known));
}

void run_parallel(int threads, const std::function<void(int)>& job) {
  const std::function<void(int)> guarded = [&job](int worker) {
    const DefaultFloatingPoint scope;
    job(worker);
  };
  if (threads <= 1 || !pool().run(threads, guarded)) guarded(0);
}

}  // namespace lowtide
