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

Buffer::Buffer(Env& env, size_t wanted) {
  if (wanted == 0) return;
  const bool huge = wanted >= kHugePage;
  if (wanted > SIZE_MAX - 2 * kHugePage) fail(ErrorKind::kOutOfMemory, "could not allocate %zu bytes", wanted);
  const size_t bytes = (wanted + kPage - 1) / kPage * kPage;
  // mmap aligns only to 4 KiB, so map one extra huge page and unmap the excess.
  const size_t taken = bytes + (huge ? kHugePage : 0);
  void* raw = nullptr;
  if (const int result = env.map(taken, &raw)) {
    fail(ErrorKind::kOutOfMemory, "could not allocate %zu bytes of host memory for optimizer state: %s", bytes,
         std::generic_category().message(-result).c_str());
  }
  auto* const begin = static_cast<std::byte*>(raw);
  const size_t skip = huge ? (kHugePage - reinterpret_cast<uintptr_t>(begin) % kHugePage) % kHugePage : 0;
  data_ = {begin + skip, Unmap{&env, bytes}};
  if (!huge) return;
  if (skip) env.unmap(begin, skip);
  if (skip < kHugePage) env.unmap(data() + bytes, kHugePage - skip);
#if defined(MADV_HUGEPAGE)
  // Huge pages give one thread 10-25 % more bandwidth. This is only advice: a kernel without them ignores it, and
  // systems other than Linux lack the flag.
  madvise(data(), bytes, MADV_HUGEPAGE);
#endif
}

void Buffer::drop_pages() const {
  if (data_) madvise(data(), bytes(), MADV_DONTNEED);
}

}  // namespace lowtide
