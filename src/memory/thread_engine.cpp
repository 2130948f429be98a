#include <semaphore.h>

#include <algorithm>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>

#include "core/process.h"
#include "memory/io_engine.h"

namespace lowtide {
namespace {

constexpr int kMaxThreads = 4;  // enough to keep a disk busy with large requests

// Removes and returns the first request, or returns nullptr.
IoRequest* take_first(std::vector<IoRequest*>& from) {
  if (from.empty()) return nullptr;
  IoRequest* const request = from.front();
  from.erase(from.begin());
  return request;
}

// A POSIX semaphore, because glibc before 2.41 can lose a condition variable's signals (bug 25847), and did.
class Semaphore {
 public:
  Semaphore() { sem_init(&semaphore_, 0, 0); }
  ~Semaphore() { sem_destroy(&semaphore_); }
  Semaphore(const Semaphore&) = delete;
  Semaphore& operator=(const Semaphore&) = delete;
  void post() { sem_post(&semaphore_); }
  void wait() {
    while (sem_wait(&semaphore_) != 0) {  // interrupted by a signal
    }
  }
  bool try_wait() { return sem_trywait(&semaphore_) == 0; }

 private:
  sem_t semaphore_;
};

class ThreadEngine : public IoEngine {
 public:
  ThreadEngine(Env& env, int fd, int depth) : env_(env), fd_(fd) {
    waiting_.reserve(static_cast<size_t>(depth));
    over_.reserve(static_cast<size_t>(depth));
    const AllSignalsBlocked blocked;
    threads_.reserve(kMaxThreads);
    try {
      for (int i = 0; i < std::min(depth, kMaxThreads); ++i) threads_.emplace_back([this] { run(); });
    } catch (const std::exception&) {  // the threads that have started are enough
    }
  }

  ~ThreadEngine() override {
    for (size_t i = 0; i < threads_.size(); ++i) work_.post();  // wakes a thread without a request, which ends it
    for (std::thread& thread : threads_) thread.join();
  }

  void start(IoRequest* request) noexcept override {
    {
      const std::lock_guard lock(mutex_);
      waiting_.push_back(request);
    }
    ++under_way_;
    work_.post();
  }

  IoRequest* next(bool block) noexcept override {
    if (!under_way_) return nullptr;
    if (threads_.empty()) run_one();
    if (block)
      done_.wait();
    else if (!done_.try_wait())
      return nullptr;
    --under_way_;
    const std::lock_guard lock(mutex_);
    return take_first(over_);
  }

  const char* name() const override { return "threads"; }

 private:
  // Runs one request. Returns false if no request is waiting.
  bool run_one() {
    IoRequest* request = nullptr;
    {
      const std::lock_guard lock(mutex_);
      request = take_first(waiting_);
    }
    if (!request) return false;
    request->result = request->write ? env_.pwrite(fd_, request->memory, request->bytes, request->offset)
                                     : env_.pread(fd_, request->memory, request->bytes, request->offset);
    {
      const std::lock_guard lock(mutex_);
      over_.push_back(request);
    }
    done_.post();
    return true;
  }

  void run() {
    do work_.wait();
    while (run_one());
  }

  Env& env_;
  const int fd_;
  int under_way_ = 0;  // only the caller's thread uses this
  std::mutex mutex_;   // guards the queues
  Semaphore work_, done_;
  std::vector<IoRequest*> waiting_, over_;
  std::vector<std::thread> threads_;
};

}  // namespace

std::unique_ptr<IoEngine> make_thread_engine(Env& env, int fd, int depth) {
  return std::make_unique<ThreadEngine>(env, fd, depth);
}

}  // namespace lowtide
