#include "core/buffer.h"

#include <sys/mman.h>

#include <cerrno>
#include <cstdint>
#include <cstring>

#include "core/error.h"

namespace lowtide {
namespace {

constexpr size_t kPage = kPageBytes;
constexpr size_t kHugePage = size_t{2} << 20;

}  // namespace

Buffer::Buffer(size_t bytes) {
  if (bytes == 0) return;
  const bool huge = bytes >= kHugePage;
  if (bytes > SIZE_MAX - 2 * kHugePage) fail(ErrorKind::kOutOfMemory, "cannot allocate %zu bytes", bytes);
  bytes_ = (bytes + kPage - 1) / kPage * kPage;
  // mmap aligns to 4 KiB only: take one huge page more and give back what sticks out.
  const size_t taken = bytes_ + (huge ? kHugePage : 0);
  void* raw = mmap(nullptr, taken, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (raw == MAP_FAILED) {
    const int error = errno;
    const size_t wanted = std::exchange(bytes_, 0);
    fail(ErrorKind::kOutOfMemory, "cannot allocate %zu bytes of host memory for optimizer state: %s", wanted,
         std::strerror(error));
  }
  auto* begin = static_cast<std::byte*>(raw);
  data_ = begin;
  if (huge) {
    const size_t skip = (kHugePage - reinterpret_cast<uintptr_t>(begin) % kHugePage) % kHugePage;
    data_ += skip;
    if (skip) munmap(begin, skip);
    if (skip < kHugePage) munmap(data_ + bytes_, kHugePage - skip);
    // 10-25 % more bandwidth for one thread. Advice only: a kernel without huge pages ignores it.
    madvise(data_, bytes_, MADV_HUGEPAGE);
  }
}

void Buffer::drop_pages() const {
  if (data_) madvise(data_, bytes_, MADV_DONTNEED);
}

Buffer::~Buffer() {
  if (data_) munmap(data_, bytes_);
}

}  // namespace lowtide
