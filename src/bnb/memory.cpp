#include "bnb/memory.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <limits>

#include "core/buffer.h"
#include "core/error.h"

namespace lowtide::bnb {
namespace {

constexpr auto kAlignment = static_cast<size_t>(kPageBytes);

uintptr_t address(const void* memory) { return reinterpret_cast<uintptr_t>(memory); }

}  // namespace

Memory::Memory(std::span<OpenDevice* const> backends) {
  std::string reasons;
  for (OpenDevice* const open : backends) try {
      std::unique_ptr<Backend> first = open(0);
      const Device& device = *first->device();
      place_ = format("%s: %s", first->name(), first->target());
      if (!device.pages_shared() && !device.steps_pinned())
        fail(ErrorKind::kUnsupported, "%s does not page managed memory, and its kernels do not reach pinned memory",
             place_.c_str());
      if (!device.pages_shared())
        place_ += ", in pinned host memory: the driver does not move managed memory page by page";
      devices_.emplace(0, std::move(first));
      open_ = open;
      return;
    } catch (const Error& error) {
      reasons += (reasons.empty() ? "" : "; ") + std::string(error.what());
    }
  place_ = "host: " + reasons;
}

void* Memory::allocate(size_t bytes) {
  LT_REQUIRE(bytes > 0 && bytes <= std::numeric_limits<int64_t>::max() - kAlignment,
             "got %zu bytes to allocate, wanted from 1 to 2^63 - 4097", bytes);
  const auto size = static_cast<int64_t>(bytes);
  void* memory = nullptr;
  if (device()) {
    memory = device()->allocate(is_shared() ? MemoryKind::kShared : MemoryKind::kPinned, size);
  } else {
    memory = std::aligned_alloc(kAlignment, (bytes + kAlignment - 1) / kAlignment * kAlignment);
    if (!memory) fail(ErrorKind::kOutOfMemory, "could not allocate %zu bytes of host memory", bytes);
  }
  try {
    set(memory, 0, 1, size);
    allocations_.emplace(address(memory), size);
  } catch (...) {
    device() ? device()->free(memory) : std::free(memory);
    throw;
  }
  return memory;
}

void Memory::free(void* memory) {
  if (!memory) return;
  const auto found = allocations_.find(address(memory));
  LT_REQUIRE(found != allocations_.end(),
             "got %p to free, wanted an address that cget_managed_ptr returned, freed once", memory);
  for (auto& [number, backend] : devices_) backend->device()->host_wait(backend->device()->record(nullptr));
  device() ? device()->free(memory) : std::free(memory);
  allocations_.erase(found);
}

void Memory::prefetch(const void* memory, size_t bytes, int number) {
  LT_REQUIRE(bytes <= static_cast<size_t>(std::numeric_limits<int64_t>::max()),
             "got %zu bytes to prefetch, wanted less than 2^63", bytes);
  require_ours(memory, static_cast<int64_t>(bytes));
  LT_REQUIRE(number >= -1, "got device %d, wanted 0 or more, or -1 for the host", number);
  if (!device() || number == -1 || bytes == 0) return;
  auto found = devices_.find(number);
  if (found == devices_.end()) found = devices_.emplace(number, open_(number)).first;
  if (found->second->device()->pages_shared())
    found->second->device()->prefetch(nullptr, memory, static_cast<int64_t>(bytes));
}

void Memory::fill(void* memory, uint32_t pattern, int pattern_bytes, int64_t count) {
  LT_REQUIRE(count >= 0 && count <= std::numeric_limits<int64_t>::max() / pattern_bytes,
             "got %lld elements to fill, wanted 0 or more", ll(count));
  require_ours(memory, count * pattern_bytes);
  LT_REQUIRE(address(memory) % static_cast<uintptr_t>(pattern_bytes) == 0, "got %p, wanted memory aligned to %d bytes",
             memory, pattern_bytes);
  set(memory, pattern, pattern_bytes, count);
}

void Memory::set(void* memory, uint32_t pattern, int pattern_bytes, int64_t count) {
  if (is_shared()) {
    device()->fill(nullptr, memory, pattern, pattern_bytes, count);
    device()->host_wait(device()->record(nullptr));
  } else if (pattern_bytes == 1) {
    std::memset(memory, static_cast<int>(pattern & 0xff), static_cast<size_t>(count));
  } else {
    std::fill_n(static_cast<uint32_t*>(memory), count, pattern);
  }
}

void Memory::require_ours(const void* memory, int64_t bytes) const {
  const uintptr_t begin = address(memory);
  auto after = allocations_.upper_bound(begin);
  const bool ours = after != allocations_.begin() && (--after, true) &&
                    begin - after->first <= static_cast<uintptr_t>(after->second) &&
                    bytes <= after->second - static_cast<int64_t>(begin - after->first);
  LT_REQUIRE(ours, "got %lld bytes at %p, wanted memory that cget_managed_ptr returned, or a part of it", ll(bytes),
             memory);
}

}  // namespace lowtide::bnb
