#include "backend/cuda/host/memory.h"

#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <exception>
#include <string>
#include <thread>
#include <vector>

#include "backend/cuda/host/errors.h"
#include "core/buffer.h"

namespace lowtide::cuda_host {
namespace {

constexpr int64_t kHugePage = int64_t{2} << 20;

// Calls f(first byte, number of bytes) for each piece of `bytes`.
template <class Fn>
void for_pieces(int64_t bytes, int64_t piece, Fn&& f) {
  for (int64_t at = 0; at < bytes; at += piece) f(at, std::min(piece, bytes - at));
}

std::string lockable() {
  rlimit limit{};
  if (getrlimit(RLIMIT_MEMLOCK, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return "any number of";
  return std::to_string(limit.rlim_cur);
}

// Prefers a node; memory of another node works but is slower.
void prefer_node(void* data, int64_t bytes, int node) {
  constexpr int kPreferred = 1, kBits = 8 * sizeof(unsigned long);  // MPOL_PREFERRED
  unsigned long mask[16] = {};
  if (node < 0 || node >= static_cast<int>(std::size(mask)) * kBits) return;
  mask[node / kBits] = 1ul << (node % kBits);
  syscall(SYS_mbind, data, static_cast<unsigned long>(bytes), kPreferred, mask, std::size(mask) * kBits + 1, 0u);
}

// Touches the pages with several threads, because the driver takes far longer to create them.
void make_pages(std::byte* data, int64_t bytes) {
#ifdef MADV_POPULATE_WRITE
  constexpr int64_t kThreads = 4, kSmallest = 32 * kHugePage;
  const int64_t share = round_up(std::max(bytes / kThreads, kSmallest), kHugePage);
  std::vector<std::thread> threads;
  threads.reserve(kThreads);
  for_pieces(bytes, share, [&](int64_t at, int64_t size) {
    const auto populate = [=] { madvise(data + at, static_cast<size_t>(size), MADV_POPULATE_WRITE); };
    if (at + size == bytes) return populate();
    try {
      threads.emplace_back(populate);
    } catch (const std::exception&) {  // no thread could start; registering will create the pages
    }
  });
  for (std::thread& thread : threads) thread.join();
#else
  (void)data, (void)bytes;
#endif
}

// Registers all pieces or none.
cudaError_t register_pieces(std::byte* data, int64_t bytes) {
  int64_t registered = 0;
  cudaError_t code = cudaSuccess;
  for_pieces(bytes, HostMemory::kPieceBytes, [&](int64_t at, int64_t piece) {
    if (code != cudaSuccess) return;
    code = cudaHostRegister(data + at, static_cast<size_t>(piece), cudaHostRegisterPortable | cudaHostRegisterMapped);
    if (code == cudaSuccess) registered = at + piece;
  });
  if (code == cudaSuccess) return code;
  cudaGetLastError();
  for_pieces(registered, HostMemory::kPieceBytes, [&](int64_t at, int64_t) { cudaHostUnregister(data + at); });
  return code;
}

}  // namespace

HostMemory::HostMemory(const DeviceInfo& info, int64_t wanted) {
  const int64_t bytes = round_up(wanted, kPageBytes);
  const cudaError_t registered = info.registers ? take_registered(info, bytes) : cudaErrorNotSupported;
  if (registered == cudaSuccess) return;
  const cudaError_t given = kind_of(registered) == ErrorKind::kDeviceLost ? registered : take_from_cuda(info, bytes);
  if (given == cudaSuccess) return;
  if (kind_of(given) == ErrorKind::kDeviceLost) Scope(info, "pinning host memory").check(given);
  fail(ErrorKind::kOutOfMemory,
       "CUDA: could not allocate %lld bytes of pinned host memory. Registering the system's memory: %s; CUDA's "
       "allocator: %s. The process may lock %s bytes (ulimit -l): raise that, free host memory, or keep less there "
       "(Memory(host=...))",
       ll(bytes), words_of(registered).c_str(), words_of(given).c_str(), lockable().c_str());
}

cudaError_t HostMemory::take_registered(const DeviceInfo& info, int64_t bytes) {
  const auto size = static_cast<size_t>(bytes);
  void* const data = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (data == MAP_FAILED) return cudaErrorMemoryAllocation;
  madvise(data, size, MADV_DONTFORK);
  if (bytes >= kHugePage) madvise(data, size, MADV_HUGEPAGE);
  prefer_node(data, bytes, info.numa_node);
  auto* const first = static_cast<std::byte*>(data);
  make_pages(first, bytes);
  const cudaError_t code = register_pieces(first, bytes);
  if (code == cudaSuccess)
    data_ = {first, Unpin{&info, bytes, true}};
  else
    munmap(data, size);
  return code;
}

// The pages are the driver's, in a shared mapping, so a fork copies only their page table, not the pages. The driver
// may later give the pages to other users, whose children need them, so Unpin withdraws the advice.
cudaError_t HostMemory::take_from_cuda(const DeviceInfo& info, int64_t bytes) {
  void* data = nullptr;
  const cudaError_t code =
      cudaHostAlloc(&data, static_cast<size_t>(bytes), cudaHostAllocPortable | cudaHostAllocMapped);
  if (code != cudaSuccess) {
    cudaGetLastError();
    return code;
  }
  if (reinterpret_cast<uintptr_t>(data) % kPageBytes == 0) madvise(data, static_cast<size_t>(bytes), MADV_DONTFORK);
  data_ = {static_cast<std::byte*>(data), Unpin{&info, bytes, false}};
  return cudaSuccess;
}

// A lost device or a driver that has shut down keeps its pages to the end of the process. A forked child has none.
void Unpin::operator()(std::byte* data) const noexcept {
  quietly(*info, [&] {
    if (!registered) {
      madvise(data, static_cast<size_t>(bytes), MADV_DOFORK);
      return cudaFreeHost(data);
    }
    cudaError_t first = cudaSuccess;
    for_pieces(bytes, HostMemory::kPieceBytes, [&](int64_t at, int64_t) {
      const cudaError_t code = cudaHostUnregister(data + at);
      if (first == cudaSuccess) first = code;
    });
    return first;
  });
  if (registered && !lost(info->ordinal) && !is_forked()) munmap(data, static_cast<size_t>(bytes));
}

}  // namespace lowtide::cuda_host
