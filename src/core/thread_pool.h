// One pool of threads for the whole process. Jobs are short and cut into pieces by their caller, who works along.
#pragma once

#include <functional>

namespace lowtide {

// Cores this process may run on.
int available_threads();

// Runs job(worker) once on each of `threads` workers (0 is the calling thread) and returns when all are done. Floating
// point is in its default state on every worker (round to nearest, denormals kept), whatever the caller has set, and as
// it was afterwards. If the pool is busy with another caller's job, or threads cannot be started, the caller runs
// worker 0 alone: jobs must take their pieces from a shared counter and not count on the number of workers. job must
// not throw.
void run_parallel(int threads, const std::function<void(int worker)>& job);

}  // namespace lowtide
