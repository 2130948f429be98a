#include "memory.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <system_error>

#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/asan_interface.h>
#define LT_ASAN_POISON(memory, bytes) __asan_poison_memory_region(memory, bytes)
#define LT_ASAN_UNPOISON(memory, bytes) __asan_unpoison_memory_region(memory, bytes)
#else
#define LT_ASAN_POISON(memory, bytes) ((void)(memory), (void)(bytes))
#define LT_ASAN_UNPOISON(memory, bytes) ((void)(memory), (void)(bytes))
#endif

namespace cuda_emulator {
namespace {

constexpr size_t kPage = 4096, kEdge = 256;
constexpr size_t kAddresses = size_t{1} << 38;
// Addresses are given again only after so many others, so that what is freed stays out of reach for long.
constexpr size_t kRound = 64 << 20;
constexpr size_t kPoisoned = 16 << 20;  // of the beginning of an allocation

size_t whole(size_t bytes) { return (bytes + kEdge + kPage - 1) / kPage * kPage; }

}  // namespace

const Block* find_block(const Blocks& blocks, const void* address) {
  const auto at = reinterpret_cast<uintptr_t>(address);
  auto it = blocks.upper_bound(at);
  if (it == blocks.begin()) return nullptr;
  --it;
  return at < it->first + it->second.bytes ? &it->second : nullptr;
}

bool locate(const Blocks& blocks, const void* memory, size_t bytes, Block& out) {
  const auto at = reinterpret_cast<uintptr_t>(memory);
  if (const Block* block = find_block(blocks, memory)) {
    out = *block;
    return at + bytes <= reinterpret_cast<uintptr_t>(block->begin) + block->bytes;
  }
  out = Block{};
  const auto next = blocks.lower_bound(at);
  return next == blocks.end() || at + bytes <= next->first;
}

Arena::Arena(size_t capacity) : capacity_(capacity) {
  void* memory = ::mmap(nullptr, kAddresses, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) throw std::system_error(errno, std::generic_category(), "addresses of an emulated device");
  base_ = static_cast<std::byte*>(memory);
}

Arena::~Arena() { ::munmap(base_, kAddresses); }

void Arena::open() {
  if (is_open_ || live_.empty()) return;
  const size_t first = live_.begin()->first, last = live_.rbegin()->second;
  ::mprotect(base_ + first, last - first, PROT_READ | PROT_WRITE);
  is_open_ = true;
}

void Arena::close() {
  if (!is_open_) return;
  is_open_ = false;
  if (live_.empty()) return;
  const size_t first = live_.begin()->first, last = live_.rbegin()->second;
  ::mprotect(base_ + first, last - first, PROT_NONE);
}

// The first gap from where the last allocation ended, and after a round from the beginning.
size_t Arena::find_gap(size_t bytes) {
  if (next_ > kRound) next_ = 0;
  auto behind = live_.lower_bound(next_);
  if (behind != live_.begin()) next_ = std::max(next_, std::prev(behind)->second);
  for (; behind != live_.end() && behind->first - next_ < bytes; ++behind) next_ = behind->second;
  return next_;
}

std::byte* Arena::allocate(size_t bytes) {
  const size_t pages = whole(bytes);
  if (bytes > capacity_ || used_ > capacity_ - bytes) return nullptr;
  const size_t begin = find_gap(pages);
  if (begin + pages > kAddresses) return nullptr;
  close();
  std::byte* const memory = base_ + begin;
  live_[begin] = begin + pages;
  next_ = begin + pages, used_ += bytes;
  open();
  LT_ASAN_UNPOISON(memory, pages);
  std::memset(memory, kPoison, std::min(bytes, kPoisoned));
  std::memset(memory + bytes, kPoison, pages - bytes);
  LT_ASAN_POISON(memory + bytes, pages - bytes);
  return memory;
}

bool Arena::edge_is_whole(const std::byte* memory, size_t bytes) const {
  const size_t size = whole(bytes) - bytes;
  LT_ASAN_UNPOISON(memory + bytes, size);
  const bool is_whole = std::all_of(memory + bytes, memory + bytes + size,
                                    [](std::byte b) { return b == static_cast<std::byte>(kPoison); });
  LT_ASAN_POISON(memory + bytes, size);
  return is_whole;
}

bool Arena::free(std::byte* memory, size_t bytes) {
  open();
  const bool is_whole = edge_is_whole(memory, bytes);
  close();
  live_.erase(static_cast<size_t>(memory - base_));
  used_ -= bytes;
  ::madvise(memory, whole(bytes), MADV_DONTNEED);
  LT_ASAN_POISON(memory, whole(bytes));
  return is_whole;
}

}  // namespace cuda_emulator
