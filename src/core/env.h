// Files and the memory of state behind one interface: everything that touches a disk or allocates memory for state
// calls it, so that tests can make any call fail.
//
// Every function returns the system call's result, or -errno: no retries, no messages. Callers handle EINTR and short
// counts. Thread-safe, like the system.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace lowtide {

class Env {
 public:
  virtual ~Env() = default;
  virtual int open(const char* path, int flags, unsigned mode);
  // Relative to an open directory, which stays the same directory even if its path changes.
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
  // st_mode of the file at a path, following links.
  virtual int mode_of(const char* path, unsigned* mode);
  virtual int unlink(const char* path);
  // Exclusive lock of the open file description, against this process and others; -EAGAIN if another description holds
  // it. *holder: the process that holds it if the system knows (a classic lock, owned by a process), else 0. Forked
  // children share a description: the lock ends with unlock() or when the last of its descriptors is closed.
  virtual int lock(int fd, int* holder);
  virtual int unlock(int fd);
  // Anonymous memory, zeroed and page-aligned (mmap); on success sets *memory and returns 0.
  virtual int map(size_t bytes, void** memory);
  // Unmaps whole pages of it, possibly only a part.
  virtual int unmap(void* memory, size_t bytes);
  // The first `bytes` of a file as memory that reads and writes it (mmap); on success sets *memory and returns 0.
  virtual int map_file(int fd, size_t bytes, void** memory);
  // Starts to read a range of a file into the page cache, and does not wait.
  virtual int read_ahead(int fd, int64_t offset, int64_t bytes);
  // Writes what memory has changed of a range, and waits: then its pages can leave memory. No promise beyond a crash.
  virtual int write_back(int fd, int64_t offset, int64_t bytes);
  // Takes whole pages of a range of a mapped file out of memory, but those that have to be written first.
  virtual int drop_pages(int fd, int64_t offset, void* memory, int64_t bytes);
  // False: all I/O goes through pread and pwrite above, where a test can reach it.
  virtual bool allows_io_uring() const { return true; }
};

Env& system_env();

}  // namespace lowtide
