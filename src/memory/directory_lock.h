// Keeps other processes out of a directory: a lock on <directory>/.lowtide.lock, held once per process and shared by
// all who ask for it there, until the last of them goes. It ends with the process, however that ends.
//
// The file stays when the lock is released. Removing it could not be made safe: a process that has opened it but not
// locked it yet would lock a file without a name, and the next process a new one, both believing to be alone.
//
// A forked child has no part in its parent's lock: its copies of the descriptors are closed at fork().
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>
#include <utility>

#include "core/env.h"

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
  int64_t forks_;  // that led to the process that made this object
};

}  // namespace lowtide
