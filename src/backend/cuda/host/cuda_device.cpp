#include "backend/cuda/host/cuda_device.h"

#include <algorithm>

#include "backend/cuda/device/launch.h"
#include "backend/cuda/host/errors.h"

namespace lowtide::cuda_host {
namespace {

// Managed memory may use at most this part of the free memory and of all memory, because a driver that must evict pages
// may hang.
constexpr int64_t managed_share(int64_t bytes) { return bytes - bytes / 10; }

// CUDA 13 changed the calls for managed memory.
#if CUDART_VERSION >= 13000
cudaMemLocation location_of(int ordinal) {
  cudaMemLocation location{};
  location.type = cudaMemLocationTypeDevice;
  location.id = ordinal;
  return location;
}
cudaError_t prefetch_managed(const void* data, size_t bytes, int ordinal, cudaStream_t stream) {
  return cudaMemPrefetchAsync(data, bytes, location_of(ordinal), 0, stream);
}
cudaError_t prefer_device(const void* data, size_t bytes, int ordinal) {
  return cudaMemAdvise(data, bytes, cudaMemAdviseSetPreferredLocation, location_of(ordinal));
}
#else
cudaError_t prefetch_managed(const void* data, size_t bytes, int ordinal, cudaStream_t stream) {
  return cudaMemPrefetchAsync(data, bytes, ordinal, stream);
}
cudaError_t prefer_device(const void* data, size_t bytes, int ordinal) {
  return cudaMemAdvise(data, bytes, cudaMemAdviseSetPreferredLocation, ordinal);
}
#endif

}  // namespace

CudaDevice::~CudaDevice() {
  while (!blocks_.empty()) free(const_cast<std::byte*>(blocks_.begin()->first));
}

Device::Limits CudaDevice::limits() const {
  const Scope scope(info_, "asking for the device's memory");
  size_t free = 0, total = 0;
  scope.check(cudaMemGetInfo(&free, &total));
  return {static_cast<int64_t>(total), static_cast<int64_t>(free), -1};
}

void* CudaDevice::allocate(MemoryKind kind, int64_t bytes) {
  const Scope scope(info_, "allocating memory");
  Block block{kind, std::max<int64_t>(bytes, 1), {}, {}};
  void* memory = nullptr;
  switch (kind) {
    case MemoryKind::kDevice:
      memory = allocate_device(scope, block);
      break;
    case MemoryKind::kPinned:
      block.pinned = HostMemory(info_, block.bytes);
      memory = block.pinned.data();
      break;
    case MemoryKind::kShared:
      memory = allocate_managed(scope, block.bytes);
      managed_bytes_ += block.bytes;
      break;
  }
  blocks_.emplace(static_cast<const std::byte*>(memory), std::move(block));
  return memory;
}

void* CudaDevice::allocate_device(const Scope& scope, Block& block) {
  block.from = allocator_;
  void* memory = nullptr;
  if (allocator_.allocate) {
    memory = allocator_.take(block.bytes);
  } else if (const cudaError_t code = cudaMalloc(&memory, static_cast<size_t>(block.bytes));
             code != cudaErrorMemoryAllocation) {
    scope.check(code);
  } else {
    cudaGetLastError();
    memory = nullptr;
  }
  if (memory) return memory;
  const Limits now = limits();
  fail(ErrorKind::kOutOfMemory,
       "CUDA: could not allocate %lld bytes of device memory%s; of its %lld bytes, %lld are free", ll(block.bytes),
       block.from.allocate ? " from the caller's allocator" : "", ll(now.total), ll(now.free));
}

// Places memory on the device from the start, if that can be requested, so that the driver's free memory accounts for
// all allocations.
void* CudaDevice::allocate_managed(const Scope& scope, int64_t bytes) {
  const Limits now = limits();
  const int64_t most = std::min(managed_share(now.free), managed_share(now.total) - managed_bytes_);
  if (bytes > most)
    fail(ErrorKind::kOutOfMemory,
         "CUDA: got %lld bytes of managed memory to allocate beside %lld, wanted %lld at most, nine tenths of the free "
         "device memory: this device does not page managed memory",
         ll(bytes), ll(managed_bytes_), ll(std::max<int64_t>(most, 0)));
  void* memory = nullptr;
  const auto size = static_cast<size_t>(bytes);
  scope.check(cudaMallocManaged(&memory, size, cudaMemAttachGlobal));
  if (!info_.concurrent_managed) return memory;
  try {
    const OwnStream stream(scope);
    scope.check(prefer_device(memory, size, info_.ordinal));
    scope.check(prefetch_managed(memory, size, info_.ordinal, stream.get()));
    scope.check(cudaStreamSynchronize(stream.get()));
  } catch (const Error&) {
    cudaFree(memory);
    throw;
  }
  return memory;
}

void CudaDevice::free(void* memory) noexcept {
  const auto found = blocks_.find(static_cast<const std::byte*>(memory));
  if (found == blocks_.end()) return;
  const Block block = std::move(found->second);
  blocks_.erase(found);
  if (block.kind == MemoryKind::kShared) managed_bytes_ -= block.bytes;
  if (block.kind == MemoryKind::kPinned || is_lost()) return;
  if (block.from.free)
    block.from.free(block.from.context, memory);
  else
    quietly(info_, [&] { return cudaFree(memory); });
}

void* CudaDevice::make_queue() {
  const Scope scope(info_, "making a queue");
  return queues_.emplace_back(scope).get();
}

void CudaDevice::copy(void* queue, void* to, const void* from, int64_t bytes) {
  const Scope scope(info_, "copying");
  const cudaStream_t stream = queue_of(scope, queue);
  auto* target = static_cast<std::byte*>(to);
  auto* source = static_cast<const std::byte*>(from);
  while (bytes > 0) {
    const int64_t part = std::min(copyable(target, bytes), copyable(source, bytes));
    scope.check(cudaMemcpyAsync(target, source, static_cast<size_t>(part), cudaMemcpyDefault, stream));
    target += part, source += part, bytes -= part;
  }
  scope.queued(stream);
}

void CudaDevice::fill(void* queue, void* to, uint32_t pattern, int pattern_bytes, int64_t count) {
  LT_REQUIRE(
      (pattern_bytes == 1 || pattern_bytes == 4) && (reinterpret_cast<uintptr_t>(to) & (pattern_bytes - 1u)) == 0,
      "got a pattern of %d bytes for memory at %p, wanted 1 byte, or 4 bytes and memory aligned to 4", pattern_bytes,
      to);
  const Scope scope(info_, "filling");
  const cudaStream_t stream = queue_of(scope, queue);
  if (count <= 0) return;
  const uint32_t word = pattern_bytes == 4 ? pattern : (pattern & 0xff) * 0x01010101u;
  scope.check(cuda_kernels::fill(static_cast<unsigned char*>(to), word, count * pattern_bytes, info_.queue(stream)));
  scope.queued(stream);
}

void CudaDevice::prefetch(void* queue, const void* shared, int64_t bytes) {
  const Scope scope(info_, "prefetching");
  const cudaStream_t stream = queue_of(scope, queue);
  if (!info_.concurrent_managed || bytes <= 0) return;
  scope.check(prefetch_managed(shared, static_cast<size_t>(bytes), info_.ordinal, stream));
  scope.queued(stream);
}

Device::Event CudaDevice::record(void* queue) {
  const Scope scope(info_, "recording an event");
  return events_->record(scope, queue_of(scope, queue));
}

void CudaDevice::wait(void* queue, const Event& event) {
  const Scope scope(info_, "waiting for an event");
  const cudaStream_t stream = queue_of(scope, queue);  // refuses a wrong stream even without work to wait for
  if (event) scope.check(cudaStreamWaitEvent(stream, Events::handle(event), 0));
}

void CudaDevice::host_wait(const Event& event) {
  const Scope scope(info_, "waiting for the device");
  Events::wait(scope, event);
}

bool CudaDevice::has_happened(const Event& event) {
  const Scope scope(info_, "looking at an event");
  return Events::is_done(scope, event);
}

bool CudaDevice::is_capturing(void* queue) {
  const Scope scope(info_, "looking at a stream");
  return scope.is_capturing(queue_of(scope, queue));
}

std::string CudaDevice::describe() const {
  const Scope scope(info_, "describing the device");
  cudaDeviceProp found{};
  int driver = 0;
  scope.check(cudaGetDeviceProperties(&found, info_.ordinal));
  scope.check(cudaDriverGetVersion(&driver));
  return format("%s, driver for CUDA %d.%d, NUMA node %d", found.name, driver / 1000, driver % 1000 / 10,
                info_.numa_node);
}

bool CudaDevice::is_lost() const { return lost(info_.ordinal) || is_forked(); }

cudaStream_t CudaDevice::queue_of(const Scope& scope, void* queue) const {
  const auto stream = static_cast<cudaStream_t>(queue);
  if (!stream || stream == known_queue_ ||
      std::any_of(queues_.begin(), queues_.end(), [&](const OwnStream& own) { return own.get() == stream; }))
    return stream;
  int ordinal = -1;
  scope.check(find_device(stream, ordinal));
  if (ordinal < 0) return stream;
  LT_REQUIRE(ordinal == info_.ordinal,
             "got a stream of CUDA device %d, wanted one of device %d, where the optimizer and its state are", ordinal,
             info_.ordinal);
  known_queue_ = stream;
  return stream;
}

CudaDevice::Blocks::const_iterator CudaDevice::block_of(const void* data) const {
  const auto* const first = static_cast<const std::byte*>(data);
  const auto found = blocks_.lower_bound(first);  // the last block that begins at or before `first`
  return found != blocks_.end() && first < found->first + found->second.bytes ? found : blocks_.end();
}

bool CudaDevice::owns(const void* data) const {
  const auto found = block_of(data);
  return found != blocks_.end() && (found->second.kind != MemoryKind::kPinned || steps_pinned());
}

int64_t CudaDevice::copyable(const void* data, int64_t bytes) const {
  const auto found = block_of(data);
  if (found == blocks_.end() || found->second.kind != MemoryKind::kPinned) return bytes;
  const int64_t at = static_cast<const std::byte*>(data) - found->first;
  return std::min(bytes, HostMemory::kPieceBytes - at % HostMemory::kPieceBytes);
}

}  // namespace lowtide::cuda_host
