// One thread pool for the whole process. Jobs are short; the caller cuts them into pieces and works too.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <functional>
#include <type_traits>

namespace lowtide {

// The number of cores that this process may run on, at least 1.
int available_threads();

// Runs job(worker) once on each of `threads` workers (0 is the calling thread) and returns when all are done. Every
// worker runs with default floating-point settings (round to nearest, denormals kept), whatever the caller has set; the
// caller's settings are restored. If the pool is busy with another caller's job, or threads cannot be started, the
// caller runs worker 0 alone: jobs must take their pieces from a shared counter and not rely on the number of workers.
// job must not throw.
void run_parallel(int threads, const std::function<void(int worker)>& job);

// Calls work(piece) once for every piece in [0, pieces). Up to `threads` threads take the pieces in increasing order
// from a shared counter. If work returns bool, false stops the thread that called it.
template <class Work>
void parallel_for(int64_t pieces, int threads, Work&& work) {
  std::atomic<int64_t> next{0};
  run_parallel(static_cast<int>(std::min<int64_t>(threads, pieces)), [&](int) {
    for (int64_t piece; (piece = next.fetch_add(1, std::memory_order_relaxed)) < pieces;) {
      if constexpr (std::is_same_v<std::invoke_result_t<Work&, int64_t>, bool>) {
        if (!work(piece)) return;
      } else {
        work(piece);
      }
    }
  });
}

}  // namespace lowtide
