#include "core/buffer.h"

#include <sys/mman.h>

#include <cstdint>
#include <system_error>

#include "core/error.h"

namespace lowtide {
namespace {

constexpr size_t kPage = kPageBytes;
constexpr size_t kHugePage = size_t{2} << 20;

}  // namespace

Buffer::Buffer(Env& env, size_t bytes) : env_(&env) {
  if (bytes == 0) return;
  const bool huge = bytes >= kHugePage;
  if (bytes > SIZE_MAX - 2 * kHugePage) fail(ErrorKind::kOutOfMemory, "cannot allocate %zu bytes", bytes);
  bytes_ = (bytes + kPage - 1) / kPage * kPage;
  // mmap aligns to 4 KiB only: take one huge page more and give back what sticks out.
  const size_t taken = bytes_ + (huge ? kHugePage : 0);
  void* raw = nullptr;
  if (const int result = env.map(taken, &raw)) {
    fail(ErrorKind::kOutOfMemory, "cannot allocate %zu bytes of host memory for optimizer state: %s", bytes_,
         std::generic_category().message(-result).c_str());
  }
  auto* begin = static_cast<std::byte*>(raw);
  data_ = begin;
  if (huge) {
    const size_t skip = (kHugePage - reinterpret_cast<uintptr_t>(begin) % kHugePage) % kHugePage;
    data_ += skip;
    if (skip) env.unmap(begin, skip);
    if (skip < kHugePage) env.unmap(data_ + bytes_, kHugePage - skip);
    // 10-25 % more bandwidth for one thread. Advice only: a kernel without huge pages ignores it.
    madvise(data_, bytes_, MADV_HUGEPAGE);
  }
}

void Buffer::drop_pages() const {
  if (data_) madvise(data_, bytes_, MADV_DONTNEED);
}

Buffer::~Buffer() {
  if (data_) env_->unmap(data_, bytes_);
}

}  // namespace lowtide
