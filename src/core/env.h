// One interface to files and to the memory of optimizer state. All disk access and all allocation of state go through
// it, so that tests can make any call fail.
//
// Every function returns the system call's result, or -errno: no retries, no messages. Callers handle EINTR and short
// counts. Thread-safe, like the system.
#pragma once

#include <cstddef>
#include <cstdint>

namespace lowtide {

class Env {
 public:
  virtual ~Env() = default;
  virtual int open(const char* path, int flags, unsigned mode);
  // Opens a name relative to an open directory, which stays the same even if its path changes.
  virtual int openat(int directory, const char* name, int flags, unsigned mode);
  virtual int unlinkat(int directory, const char* name);
  virtual int close(int fd);
  virtual int64_t pread(int fd, void* to, int64_t bytes, int64_t offset);
  virtual int64_t pwrite(int fd, const void* from, int64_t bytes, int64_t offset);
  // posix_fallocate from 0: ENOSPC comes now, not later. Beyond RLIMIT_FSIZE returns -EFBIG without a signal.
  virtual int allocate(int fd, int64_t bytes);
  virtual int truncate(int fd, int64_t bytes);
  virtual int sync(int fd);  // fsync
  virtual int rename(const char* from, const char* to);
  // Sets *mode to the file's st_mode; follows links.
  virtual int mode_of(const char* path, unsigned* mode);
  virtual int unlink(const char* path);
  // Locks the open file description exclusively, against this process and others; -EAGAIN if another description holds
  // the lock. Sets *holder to the process that holds it if the system knows (a classic lock, owned by a process), else
  // to 0. Forked children share a description: the lock ends with unlock() or when its last descriptor is closed.
  virtual int lock(int fd, int* holder);
  virtual int unlock(int fd);
  // Maps anonymous memory, zeroed and page-aligned; on success sets *memory and returns 0.
  virtual int map(size_t bytes, void** memory);
  // Unmaps whole pages of a mapping, possibly only some of them.
  virtual int unmap(void* memory, size_t bytes);
  // Maps the first `bytes` of a file for reading and writing; on success sets *memory and returns 0.
  virtual int map_file(int fd, size_t bytes, void** memory);
  // Starts reading a range of a file into the page cache without waiting.
  virtual int read_ahead(int fd, int64_t offset, int64_t bytes);
  // Maps whole pages of a mapped file, reading those that are not in memory. If it fails, pread tells why.
  virtual int map_pages(void* memory, int64_t bytes);
  // Writes the changed pages of a mapped file's range and waits, so that they can leave memory. A crash may still lose
  // them.
  virtual int write_back(int fd, int64_t offset, void* memory, int64_t bytes);
  // Removes whole pages of a mapped file's range from memory, except pages that must be written first.
  virtual int drop_pages(int fd, int64_t offset, void* memory, int64_t bytes);
  // If false, all I/O goes through pread and pwrite above, where a test can reach it.
  virtual bool allows_io_uring() const { return true; }
};

Env& system_env();

}  // namespace lowtide
