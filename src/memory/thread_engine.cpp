#include <pthread.h>
#include <signal.h>

#include <algorithm>
#include <condition_variable>
#include <mutex>
#include <exception>
#include <thread>
#include <vector>

#include "memory/io_engine.h"

namespace lowtide {
namespace {

constexpr int kMaxThreads = 4;  // enough to keep a disk busy with large requests

class RequestQueue {
 public:
  bool empty() const { return !first_; }
  void push(IoRequest* request) {
    request->next = nullptr;
    (first_ ? last_->next : first_) = request;
    last_ = request;
  }
  IoRequest* pop() {
    IoRequest* const request = first_;
    if (request) first_ = request->next;
    return request;
  }

 private:
  IoRequest *first_ = nullptr, *last_ = nullptr;
};

// New threads inherit the signal mask: signals of the application are handled by threads of the application.
class AllSignalsBlocked {
 public:
  AllSignalsBlocked() {
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before_);
  }
  ~AllSignalsBlocked() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }

 private:
  sigset_t before_;
};

class ThreadEngine : public IoEngine {
 public:
  ThreadEngine(Env& env, int fd, int depth) : env_(env), fd_(fd) {
    const AllSignalsBlocked blocked;
    threads_.reserve(kMaxThreads);
    try {
      for (int i = 0; i < std::min(depth, kMaxThreads); ++i) threads_.emplace_back([this] { run(); });
    } catch (const std::exception&) {  // those that started will do
    }
  }

  ~ThreadEngine() override {
    {
      const std::lock_guard lock(mutex_);
      stop_ = true;
    }
    work_.notify_all();
    for (std::thread& thread : threads_) thread.join();
  }

  void start(IoRequest* request) noexcept override {
    {
      const std::lock_guard lock(mutex_);
      waiting_.push(request);
    }
    ++under_way_;
    work_.notify_one();
  }

  IoRequest* next(bool block) noexcept override {
    if (!under_way_) return nullptr;
    std::unique_lock lock(mutex_);
    if (threads_.empty()) {
      IoRequest* const request = waiting_.pop();
      carry_out(request);
      over_.push(request);
    }
    if (block) done_.wait(lock, [this] { return !over_.empty(); });
    IoRequest* const request = over_.pop();
    if (request) --under_way_;
    return request;
  }

  const char* name() const override { return "threads"; }

 private:
  void carry_out(IoRequest* request) {
    request->result = request->write ? env_.pwrite(fd_, request->memory, request->bytes, request->offset)
                                     : env_.pread(fd_, request->memory, request->bytes, request->offset);
  }

  void run() {
    std::unique_lock lock(mutex_);
    for (;;) {
      work_.wait(lock, [this] { return stop_ || !waiting_.empty(); });
      if (waiting_.empty()) return;
      IoRequest* const request = waiting_.pop();
      lock.unlock();
      carry_out(request);
      lock.lock();
      over_.push(request);
      done_.notify_one();
    }
  }

  Env& env_;
  const int fd_;
  int under_way_ = 0;  // of the caller's thread alone
  std::mutex mutex_;
  std::condition_variable work_, done_;
  RequestQueue waiting_, over_;
  bool stop_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace

std::unique_ptr<IoEngine> make_thread_engine(Env& env, int fd, int depth) {
  return std::make_unique<ThreadEngine>(env, fd, depth);
}

}  // namespace lowtide
