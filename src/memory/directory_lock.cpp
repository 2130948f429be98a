#include "memory/directory_lock.h"

#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <chrono>
#include <map>
#include <mutex>
#include <thread>

#include "core/error.h"
#include "memory/descriptor.h"

namespace lowtide {
namespace {

struct Held {
  int fd = -1;
  int64_t users = 0;
};

// This process's locks, indexed by lock file. A file keeps its inode number as long as it is open.
struct Registry {
  std::mutex mutex;
  std::map<std::pair<dev_t, ino_t>, Held> held;
};

Registry& registry();

void before_fork() { registry().mutex.lock(); }

void after_fork_in_parent() { registry().mutex.unlock(); }

void after_fork_in_child() {
  Registry& r = registry();
  for (const auto& [file, held] : r.held) ::close(held.fd);  // otherwise the lock would outlive the parent
  r.held.clear();
  r.mutex.unlock();
}

Registry& registry() {
  static Registry* const r = [] {
    pthread_atfork(before_fork, after_fork_in_parent, after_fork_in_child);
    return new Registry;  // never destroyed, because files may be closed while the process exits
  }();
  return *r;
}

int open_lock_file(Env& env, int directory, const std::string& path) {
  // O_NONBLOCK keeps a planted FIFO or device from blocking this call.
  constexpr int kFlags = O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK | O_NOCTTY;
  const int fd = retry_interrupted([&] { return env.openat(directory, DirectoryLock::kFileName, kFlags, 0600); });
  const char* const name = DirectoryLock::kFileName;
  LT_REQUIRE(fd != -ELOOP && fd != -EISDIR && fd != -ENXIO,
             "got %s/%s, which is a link, a directory or a device, wanted a lock file: remove it", path.c_str(), name);
  if (fd < 0) fail_io(-fd, "could not open the lock file %s/%s", path.c_str(), name);
  return fd;
}

// Returns the process id in the lock file, or 0 if it holds none, because its owner may not have written it yet.
int written_holder(Env& env, int fd) {
  char text[32] = {};
  const int64_t length = retry_interrupted([&] { return env.pread(fd, text, sizeof text, 0); });
  int pid = 0;
  if (length > 0) std::from_chars(text, text + length, pid);
  if (pid <= 0 || (::kill(pid, 0) < 0 && errno == ESRCH)) return 0;  // left by a process that has ended
  return pid;
}

void take(Env& env, int fd, const std::string& path) {
  constexpr int kLooks = 20;
  int holder = 0;
  int result = -EAGAIN;
  for (int look = 0; look < kLooks && result == -EAGAIN && !holder; ++look) {
    if (look > 0) std::this_thread::sleep_for(std::chrono::milliseconds(5));
    result = retry_interrupted([&] { return env.lock(fd, &holder); });
    if (result == -EAGAIN && !holder) holder = written_holder(env, fd);
  }
  const char* const name = DirectoryLock::kFileName;
  if (result == -EAGAIN) {
    const std::string who = holder ? format("process %d", holder) : "another process";
    fail(ErrorKind::kInvalidArgument,
         "got directory %s, which is in use by %s (it has locked %s): give each process its own", path.c_str(),
         who.c_str(), name);
  }
  if (result < 0) fail_io(-result, "could not lock %s/%s", path.c_str(), name);
}

void write_holder(Env& env, int fd, const std::string& path) {
  const std::string text = format("%d\n", static_cast<int>(::getpid()));
  const auto length = static_cast<int64_t>(text.size());
  int64_t result = retry_interrupted([&] { return env.truncate(fd, 0); });
  for (int i = 0; i < kMaxRetries && result >= 0 && result < length; ++i) {
    result = retry_interrupted([&] { return env.pwrite(fd, text.data(), length, 0); });
  }
  if (result == length) return;
  env.unlock(fd);
  fail_io(result < 0 ? static_cast<int>(-result) : ENOSPC, "could not write %s/%s", path.c_str(),
          DirectoryLock::kFileName);
}

}  // namespace

DirectoryLock::DirectoryLock(Env& env, int directory, const std::string& path) : env_(env) {
  Registry& r = registry();
  const std::lock_guard guard(r.mutex);
  Descriptor fd(env, open_lock_file(env, directory, path));
  struct stat status {};
  if (::fstat(fd.get(), &status) < 0) fail_io(errno, "could not examine %s/%s", path.c_str(), kFileName);
  // A file with a second name could be a file that somebody wants to keep.
  LT_REQUIRE(S_ISREG(status.st_mode) && status.st_nlink <= 1,
             "got %s/%s, which is not a plain file with one name, wanted a lock file: remove it", path.c_str(),
             kFileName);
  file_ = {status.st_dev, status.st_ino};
  if (const auto found = r.held.find(file_); found != r.held.end()) {
    ++found->second.users;
    return;
  }
  take(env, fd.get(), path);
  write_holder(env, fd.get(), path);
  r.held[file_] = {fd.get(), 1};
  fd.release();
}

DirectoryLock::~DirectoryLock() {
  Registry& r = registry();
  const std::lock_guard guard(r.mutex);
  if (forks() != forks_) return;
  const auto found = r.held.find(file_);
  if (--found->second.users > 0) return;
  env_.unlock(found->second.fd);  // close() alone does not unlock if a child of vfork() or clone() has a copy
  env_.close(found->second.fd);
  r.held.erase(found);
}

}  // namespace lowtide
