// Keeps other processes out of a directory by a lock on <directory>/.lowtide.lock. All DirectoryLocks of a process, on
// any thread, share one lock, which is released when the last of them is destroyed. The lock ends with the process,
// however the process ends.
//
// The file stays after the lock is released, because removing it cannot be made safe: a process that has opened but not
// yet locked the file would lock a file without a name, the next process would lock a new file, and each would believe
// that it is alone.
//
// A forked child does not share its parent's lock, because fork() closes the child's copies of the descriptors.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>
#include <utility>

#include "core/env.h"
#include "core/process.h"

namespace lowtide {

class DirectoryLock {
 public:
  static constexpr char kFileName[] = ".lowtide.lock";

  // `directory` is an open descriptor; `path` is used in messages. Throws kInvalidArgument if another process has the
  // lock (the message names that process) or if the lock file is not a plain file with one name, and kIo for other
  // errors. `env` must outlive this object.
  DirectoryLock(Env& env, int directory, const std::string& path);
  ~DirectoryLock();
  DirectoryLock(const DirectoryLock&) = delete;
  DirectoryLock& operator=(const DirectoryLock&) = delete;

 private:
  Env& env_;
  std::pair<dev_t, ino_t> file_;
  const int64_t forks_ = forks();
};

}  // namespace lowtide
