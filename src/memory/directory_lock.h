// Keeps other processes out of a directory by a lock on <directory>/.lowtide.lock. A process holds it once; all of its
// DirectoryLocks share it, on any thread, until the last is destroyed. The lock ends with the process, whatever ends
// the process.
//
// The file stays after the lock is released, because removing it cannot be made safe: a process that has opened but not
// yet locked the file would lock a file without a name, the next process would lock a new one, and both would believe
// that they are alone.
//
// A forked child has no part in its parent's lock: its copies of the descriptors are closed at fork().
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>
#include <utility>

#include "core/env.h"
#include "core/forks.h"

namespace lowtide {

class DirectoryLock {
 public:
  static constexpr char kFileName[] = ".lowtide.lock";

  // `directory`: an open descriptor, `path` for messages. Throws kInvalidArgument if another process has the lock (the
  // message names it) or the lock file is not a plain file with one name, else kIo. env outlives this object.
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
