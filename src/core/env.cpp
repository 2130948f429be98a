#include "core/env.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>

namespace lowtide {
namespace {

template <typename T>
T or_error(T result) {
  return result < 0 ? static_cast<T>(-errno) : result;
}

struct flock whole_file(short type) {
  struct flock range {};
  range.l_type = type;
  range.l_whence = SEEK_SET;
  return range;  // l_pid must be 0 for open-file-description locks
}

}  // namespace

int Env::open(const char* path, int flags, unsigned mode) { return or_error(::open(path, flags, mode)); }

int Env::openat(int directory, const char* name, int flags, unsigned mode) {
  return or_error(::openat(directory, name, flags, mode));
}

int Env::unlinkat(int directory, const char* name) { return or_error(::unlinkat(directory, name, 0)); }

int Env::close(int fd) { return or_error(::close(fd)); }

int64_t Env::pread(int fd, void* to, int64_t bytes, int64_t offset) {
  return or_error(static_cast<int64_t>(::pread(fd, to, static_cast<size_t>(bytes), offset)));
}

int64_t Env::pwrite(int fd, const void* from, int64_t bytes, int64_t offset) {
  return or_error(static_cast<int64_t>(::pwrite(fd, from, static_cast<size_t>(bytes), offset)));
}

int Env::allocate(int fd, int64_t bytes) {
  struct rlimit limit {};
  if (bytes > 0 && ::getrlimit(RLIMIT_FSIZE, &limit) == 0 && static_cast<rlim_t>(bytes) > limit.rlim_cur) {
    return -EFBIG;  // posix_fallocate would raise SIGXFSZ, which kills a process without a handler
  }
  return -::posix_fallocate(fd, 0, bytes);
}

int Env::truncate(int fd, int64_t bytes) { return or_error(::ftruncate(fd, bytes)); }

int Env::sync(int fd) { return or_error(::fsync(fd)); }

int Env::rename(const char* from, const char* to) { return or_error(std::rename(from, to)); }

int Env::mode_of(const char* path, unsigned* mode) {
  struct stat status {};
  const int result = or_error(::stat(path, &status));
  if (result == 0) *mode = status.st_mode;
  return result;
}

int Env::unlink(const char* path) { return or_error(::unlink(path)); }

int Env::lock(int fd, int* holder) {
  *holder = 0;
  struct flock range = whole_file(F_WRLCK);
  if (::fcntl(fd, F_OFD_SETLK, &range) == 0) return 0;
  const int error = errno == EACCES ? EAGAIN : errno;
  if (error == EAGAIN) {
    range = whole_file(F_WRLCK);
    if (::fcntl(fd, F_OFD_GETLK, &range) == 0 && range.l_type != F_UNLCK && range.l_pid > 0) *holder = range.l_pid;
  }
  return -error;
}

int Env::unlock(int fd) {
  struct flock range = whole_file(F_UNLCK);
  return or_error(::fcntl(fd, F_OFD_SETLK, &range));
}

int Env::map(size_t bytes, void** memory) {
  void* const mapped = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapped == MAP_FAILED) return -errno;
  *memory = mapped;
  return 0;
}

int Env::unmap(void* memory, size_t bytes) { return or_error(::munmap(memory, bytes)); }

int Env::map_file(int fd, size_t bytes, void** memory) {
  void* const mapped = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (mapped == MAP_FAILED) return -errno;
  *memory = mapped;
  return 0;
}

int Env::read_ahead(int fd, int64_t offset, int64_t bytes) {
  return -::posix_fadvise(fd, offset, bytes, POSIX_FADV_WILLNEED);
}

int Env::map_pages(void* memory, int64_t bytes) {
#ifdef MADV_POPULATE_READ
  constexpr int kPopulate = MADV_POPULATE_READ;
#else
  constexpr int kPopulate = 22;  // headers before Linux 5.14 lack it
#endif
  return or_error(::madvise(memory, static_cast<size_t>(bytes), kPopulate));
}

int Env::write_back(int fd, int64_t offset, void* memory, int64_t bytes) {
  // For each page that is still mapped, the write would interrupt the other processors.
  ::madvise(memory, static_cast<size_t>(bytes), MADV_DONTNEED);
  constexpr unsigned kAll = SYNC_FILE_RANGE_WAIT_BEFORE | SYNC_FILE_RANGE_WRITE | SYNC_FILE_RANGE_WAIT_AFTER;
  return or_error(::sync_file_range(fd, offset, bytes, kAll));
}

int Env::drop_pages(int fd, int64_t offset, void* memory, int64_t bytes) {
  const int result = or_error(::madvise(memory, static_cast<size_t>(bytes), MADV_DONTNEED));
  return result ? result : -::posix_fadvise(fd, offset, bytes, POSIX_FADV_DONTNEED);
}

Env& system_env() {
  static Env* const env = new Env;  // never destroyed: files may be closed while the process exits
  return *env;
}

}  // namespace lowtide
