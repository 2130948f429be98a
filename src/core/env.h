// Files and the memory of state, as the library sees them: one seam under everything that touches a disk or takes
// memory for state, so that tests can fail any call.
//
// Every function returns what the system call returns, or -errno: no retries, no messages. Callers handle EINTR and
// short counts. Thread-safe, as the system is.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace lowtide {

class Env {
 public:
  virtual ~Env() = default;
  virtual int open(const char* path, int flags, unsigned mode);
  // Relative to an open directory, which stays the same one whatever happens to its path.
  virtual int openat(int directory, const char* name, int flags, unsigned mode);
  virtual int unlinkat(int directory, const char* name);
  virtual int close(int fd);
  virtual int64_t pread(int fd, void* to, int64_t bytes, int64_t offset);
  virtual int64_t pwrite(int fd, const void* from, int64_t bytes, int64_t offset);
  // posix_fallocate from 0: ENOSPC now instead of later; -EFBIG beyond RLIMIT_FSIZE, without the signal.
  virtual int allocate(int fd, int64_t bytes);
  virtual int truncate(int fd, int64_t bytes);
  virtual int sync(int fd);  // fsync
  virtual int rename(const char* from, const char* to);
  // st_mode of the file that a path leads to, links followed.
  virtual int mode_of(const char* path, unsigned* mode);
  virtual int unlink(const char* path);
  // Exclusive lock of the open file description, of this process or another; -EAGAIN if another one has it. *holder:
  // the process that has it where the system knows (a lock of the classic kind, by process), else 0. A description is
  // shared with forked children: the lock ends with unlock() or when the last of its descriptors is closed.
  virtual int lock(int fd, int* holder);
  virtual int unlock(int fd);
  // Anonymous memory, zeroed and page-aligned (mmap); *memory is set on success, 0.
  virtual int map(size_t bytes, void** memory);
  // Whole pages of it, also a part.
  virtual int unmap(void* memory, size_t bytes);
  // False: all I/O goes through pread and pwrite above, where a test can reach it.
  virtual bool allows_io_uring() const { return true; }
};

Env& system_env();

}  // namespace lowtide
