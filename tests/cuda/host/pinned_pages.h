// Pages that the kernel has pinned for the long term, as a driver does in cudaHostRegister: by buffers that are
// registered with io_uring, which needs no GPU. And memory as Linux shows it.
#pragma once

#include <linux/io_uring.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include <cstdint>
#include <fstream>
#include <sstream>
#include <string>

namespace lowtide::cuda_host {

class PinnedPages {
 public:
  PinnedPages(void* memory, size_t bytes) {
    rlimit limit{};
    if (getrlimit(RLIMIT_MEMLOCK, &limit) == 0) {
      limit.rlim_cur = limit.rlim_max;
      setrlimit(RLIMIT_MEMLOCK, &limit);
    }
    io_uring_params params{};
    ring_ = static_cast<int>(syscall(SYS_io_uring_setup, 1, &params));
    const iovec all{memory, bytes};
    pinned_ = ring_ >= 0 && syscall(SYS_io_uring_register, ring_, IORING_REGISTER_BUFFERS, &all, 1) == 0;
  }
  ~PinnedPages() {
    if (ring_ >= 0) close(ring_);
  }
  PinnedPages(const PinnedPages&) = delete;
  PinnedPages& operator=(const PinnedPages&) = delete;

  // false: this machine does not let the process.
  explicit operator bool() const { return pinned_; }

 private:
  int ring_ = -1;
  bool pinned_ = false;
};

// Whether all mappings of the range have the flag ("dc": not copied by fork), by /proc/self/smaps. false where parts of
// the range are not mapped.
inline bool has_flag(const void* memory, size_t bytes, const std::string& flag) {
  std::ifstream maps("/proc/self/smaps");
  std::string line;
  uintptr_t next = reinterpret_cast<uintptr_t>(memory), last = next + bytes, first_of = 0, last_of = 0;
  while (next < last && std::getline(maps, line)) {
    char dash = 0;
    std::istringstream words(line);
    if (line.rfind("VmFlags:", 0) == 0) {
      if (next < first_of || next >= last_of) continue;
      if ((line + " ").find(" " + flag + " ") == std::string::npos) return false;
      next = last_of;
    } else if (line.find(':') > line.find('-') && words >> std::hex >> first_of >> dash >> last_of) {
      if (first_of > next) return false;
    }
  }
  return next >= last;
}

// Whether anything is mapped there.
inline bool is_mapped(const void* memory, size_t bytes) {
  std::ifstream maps("/proc/self/maps");
  std::string line;
  const auto first = reinterpret_cast<uintptr_t>(memory);
  uintptr_t begin, end;
  char dash;
  while (std::getline(maps, line))
    if (std::istringstream(line) >> std::hex >> begin >> dash >> end && begin < first + bytes && first < end)
      return true;
  return false;
}

// Bytes that this process shares with no other: after a fork, those that were copied.
inline int64_t private_bytes() {
  std::ifstream all("/proc/self/smaps_rollup");
  std::string word;
  while (all >> word)
    if (word == "Private_Dirty:") {
      int64_t kib = -1;
      all >> kib;
      return kib << 10;
    }
  return -1;
}

}  // namespace lowtide::cuda_host
