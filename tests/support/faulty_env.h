// An Env that forwards to another and spoils chosen calls: the n-th call of a kind, once or from then on, fails with an
// errno or transfers too little. It can also make memory fail (kMap, which kAny leaves out), and call back around the
// n-th call, where a test may end the process.
#pragma once

#include "core/env.h"
#include "support/test.h"

namespace lowtide::testing {

enum class Call : int { kAny, kOpen, kPread, kPwrite, kAllocate, kTruncate, kSync, kRename, kUnlink, kLock, kMap };
constexpr int kCallKinds = 11;

struct Fault {
  Call call = Call::kAny;
  int64_t nth = 0;          // the n-th call of this kind, from 1; 0: none
  bool persistent = false;  // also spoils all later calls of this kind
  // Either error or short_. EINTR is an errno like others.
  int error = 0;            // the call does nothing and returns -error
  bool short_ = false;      // pread and pwrite transfer short_bytes; other kinds work as usual
  int64_t short_bytes = 0;  // 0: half of the request. Never more than the request
  // Called at the n-th call, before it happens (or fails) and after: a crash point. May end the process.
  std::function<void()> before = nullptr, after = nullptr;
};

// The number of open descriptors of this process, as the system counts them.
inline int64_t open_descriptors() {
  return std::distance(std::filesystem::directory_iterator("/proc/self/fd"), std::filesystem::directory_iterator()) - 1;
}

// Thread-safe; one fault at a time. Each arm() restarts the counts.
class FaultyEnv : public Env {
 public:
  explicit FaultyEnv(Env& under = system_env()) : under_(under) {}

  void arm(Fault fault) {
    const std::lock_guard lock(mutex_);
    fault_ = std::move(fault);
    counts_.fill(0);
    struck_ = 0;
  }
  void disarm() { arm({}); }
  // The number of calls since arm(), without close().
  int64_t calls(Call kind = Call::kAny) const {
    const std::lock_guard lock(mutex_);
    return counts_[static_cast<size_t>(kind)];
  }
  // The number of calls spoilt since arm(); with 0 a test proves nothing.
  int64_t struck() const {
    const std::lock_guard lock(mutex_);
    return struck_;
  }
  // The number of descriptors opened through this Env and not closed through it.
  int64_t open_fds() const {
    const std::lock_guard lock(mutex_);
    return static_cast<int64_t>(fds_.size());
  }

  int open(const char* path, int flags, unsigned mode) override {
    return at(Call::kOpen, [&] { return opened(under_.open(path, flags, mode)); });
  }
  int openat(int directory, const char* name, int flags, unsigned mode) override {
    return at(Call::kOpen, [&] { return opened(under_.openat(directory, name, flags, mode)); });
  }
  int close(int fd) override {
    const std::lock_guard lock(mutex_);  // held until it is closed, because its number may be reused at once
    fds_.erase(fd);
    return under_.close(fd);
  }
  int64_t pread(int fd, void* to, int64_t bytes, int64_t offset) override {
    return transfer(Call::kPread, bytes, [&](int64_t n) { return under_.pread(fd, to, n, offset); });
  }
  int64_t pwrite(int fd, const void* from, int64_t bytes, int64_t offset) override {
    return transfer(Call::kPwrite, bytes, [&](int64_t n) { return under_.pwrite(fd, from, n, offset); });
  }
  int allocate(int fd, int64_t bytes) override {
    return at(Call::kAllocate, [&] { return under_.allocate(fd, bytes); });
  }
  int truncate(int fd, int64_t bytes) override {
    return at(Call::kTruncate, [&] { return under_.truncate(fd, bytes); });
  }
  int sync(int fd) override {
    return at(Call::kSync, [&] { return under_.sync(fd); });
  }
  int rename(const char* from, const char* to) override {
    return at(Call::kRename, [&] { return under_.rename(from, to); });
  }
  int unlink(const char* path) override {
    return at(Call::kUnlink, [&] { return under_.unlink(path); });
  }
  int unlinkat(int directory, const char* name) override {
    return at(Call::kUnlink, [&] { return under_.unlinkat(directory, name); });
  }
  int lock(int fd, int* holder) override {
    return at(Call::kLock, [&] { return under_.lock(fd, holder); });
  }
  int unlock(int fd) override { return under_.unlock(fd); }
  bool allows_io_uring() const override { return false; }
  int map(size_t bytes, void** memory) override {
    const int result = at(Call::kMap, [&] { return under_.map(bytes, memory); });
    if (result == 0) mapped_ += static_cast<int64_t>(bytes);
    return result;
  }
  int map_file(int fd, size_t bytes, void** memory) override {
    const int result = at(Call::kMap, [&] { return under_.map_file(fd, bytes, memory); });
    if (result == 0) mapped_ += static_cast<int64_t>(bytes);
    return result;
  }
  int map_pages(void*, int64_t) override { return -ENOSYS; }
  int write_back(int fd, int64_t offset, void* memory, int64_t bytes) override {
    return at(Call::kSync, [&] { return under_.write_back(fd, offset, memory, bytes); });
  }
  int unmap(void* memory, size_t bytes) override {
    mapped_ -= static_cast<int64_t>(bytes);
    return under_.unmap(memory, bytes);
  }
  // The bytes taken through this Env and not given back through it.
  int64_t mapped_bytes() const { return mapped_; }

 private:
  struct Strike {
    int error = 0;
    bool short_ = false;
    int64_t short_bytes = 0;
    std::function<void()> before = nullptr, after = nullptr;
  };

  Strike count(Call kind) {
    const std::lock_guard lock(mutex_);
    const bool file = kind != Call::kMap;
    const int64_t any = counts_[0] += file;
    const int64_t own = ++counts_[static_cast<size_t>(kind)];
    const int64_t n = fault_.call == kind ? own : fault_.call == Call::kAny && file ? any : 0;
    if (n == 0 || fault_.nth == 0 || (fault_.persistent ? n < fault_.nth : n != fault_.nth)) return {};
    ++struck_;
    return {fault_.error, fault_.short_, fault_.short_bytes, fault_.before, fault_.after};
  }

  template <typename Do>
  int at(Call kind, Do carry_out) {
    const Strike strike = count(kind);
    if (strike.before) strike.before();
    const int result = strike.error ? -strike.error : carry_out();
    if (strike.after) strike.after();
    return result;
  }

  template <typename Do>
  int64_t transfer(Call kind, int64_t bytes, Do carry_out) {
    const Strike strike = count(kind);
    if (strike.before) strike.before();
    int64_t result;
    if (strike.error) {
      result = -strike.error;
    } else if (strike.short_) {
      const int64_t wanted = strike.short_bytes > 0 ? strike.short_bytes : (bytes + 1) / 2;
      result = shortened(wanted < bytes ? wanted : bytes, carry_out);
    } else {
      result = carry_out(bytes);
    }
    if (strike.after) strike.after();
    return result;
  }

  // Direct I/O refuses counts that are not multiples of a block, yet may transfer such a count. This transfers the
  // whole blocks and claims the shorter count: a caller that resumes from an unrounded count then reads or writes the
  // wrong bytes.
  template <typename Do>
  static int64_t shortened(int64_t bytes, Do carry_out) {
    const int64_t result = carry_out(bytes);
    if (result != -EINVAL) return result;
    const int64_t blocks = bytes / 4096 * 4096;
    if (blocks > 0) {
      const int64_t done = carry_out(blocks);
      if (done != blocks) return done;
    }
    return bytes;
  }

  int opened(int fd) {
    if (fd >= 0) {
      const std::lock_guard lock(mutex_);
      fds_.insert(fd);
    }
    return fd;
  }

  Env& under_;
  mutable std::mutex mutex_;
  Fault fault_;
  std::array<int64_t, kCallKinds> counts_{};
  int64_t struck_ = 0;
  std::set<int> fds_;
  std::atomic<int64_t> mapped_{0};
};

}  // namespace lowtide::testing
