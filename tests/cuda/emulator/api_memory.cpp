// Memory and copies.
#include <sys/mman.h>

#include <algorithm>
#include <cstring>

#include "machine.h"

using namespace cuda_emulator;

namespace {

bool is_of_device(const Block& block) { return block.place == Place::kDevice; }

void open_for(Machine& machine, const Block& block) {
  if (is_of_device(block)) machine.devices[static_cast<size_t>(block.device)]->arena.open();
}

// In two pieces, between which other streams run; before it is written, what is there is garbage.
void copy_now(Machine& machine, const Block& to_block, std::byte* to, const Block& from_block, const std::byte* from,
              size_t bytes) {
  const auto open = [&] { open_for(machine, to_block), open_for(machine, from_block); };
  open();
  std::memset(to, Arena::kPoison, bytes);
  machine.interleave();
  open();
  const size_t half = machine.random.chance(0.5) ? bytes : bytes / 2;
  std::memcpy(to, from, half);
  if (half < bytes) machine.interleave();
  open();
  std::memcpy(to + half, from + half, bytes - half);
}

bool kind_fits(cudaMemcpyKind kind, const Block& to, const Block& from) {
  const bool to_device = is_of_device(to) || to.place == Place::kManaged;
  const bool from_device = is_of_device(from) || from.place == Place::kManaged;
  switch (kind) {
    case cudaMemcpyHostToHost:
      return !is_of_device(to) && !is_of_device(from);
    case cudaMemcpyHostToDevice:
      return to_device && !is_of_device(from);
    case cudaMemcpyDeviceToHost:
      return !is_of_device(to) && from_device;
    case cudaMemcpyDeviceToDevice:
      return to_device && from_device;
    default:
      return true;
  }
}

void count(Machine& machine, const Block& to, const Block& from, size_t bytes) {
  Counters& c = machine.counters;
  ++c.copies;
  (is_of_device(to) == is_of_device(from) ? c.bytes_within
   : is_of_device(to)                     ? c.bytes_to_device
                                          : c.bytes_to_host) += static_cast<int64_t>(bytes);
}

cudaError_t copy(Machine& machine, void* to, const void* from, size_t bytes, cudaMemcpyKind kind, cudaStream_t handle) {
  Stream* stream = machine.stream(handle);
  if (!stream) return cudaErrorInvalidResourceHandle;
  if (!bytes) return cudaSuccess;
  Block to_block, from_block;
  if (!to || !from || !locate(machine.blocks, to, bytes, to_block) ||
      !locate(machine.blocks, from, bytes, from_block) || !kind_fits(kind, to_block, from_block))
    return cudaErrorInvalidValue;
  const bool pageable_to = to_block.place == Place::kPageable, pageable_from = from_block.place == Place::kPageable;
  if (stream->capture && (pageable_to || pageable_from)) {
    stream->capture->valid = false;
    return cudaErrorStreamCaptureUnsupported;
  }
  auto* const target = static_cast<std::byte*>(to);
  const auto* const source = static_cast<const std::byte*>(from);
  count(machine, to_block, from_block, bytes);
  Work work;
  work.kind = Work::Kind::kCopy, work.device = stream->device;
  work.name = "a copy of " + std::to_string(bytes) + " bytes";
  work.writes = {target, bytes};
  if (pageable_from) {  // read now
    ++machine.counters.staged;
    auto staged = std::make_shared<std::vector<std::byte>>(source, source + bytes);
    work.run = [&machine, to_block, target, bytes, staged] {
      copy_now(machine, to_block, target, Block{}, staged->data(), bytes);
    };
  } else {
    work.reads = {source, bytes};
    work.run = [&machine, to_block, target, from_block, source, bytes] {
      copy_now(machine, to_block, target, from_block, source, bytes);
    };
  }
  const cudaError_t error = machine.enqueue(*stream, std::move(work));
  if (error != cudaSuccess || !pageable_to) return error;
  ++machine.counters.synchronizing;
  if (!pageable_from) ++machine.counters.staged;
  machine.force(stream->last);
  return cudaSuccess;
}

bool is_managed(Machine& machine, const void* memory, size_t bytes) {
  Block block;
  return memory && locate(machine.blocks, memory, bytes, block) && block.place == Place::kManaged;
}

// Nothing moves: the host and the device share it all the time.
cudaError_t prefetch(Machine& machine, const void* memory, size_t bytes, bool valid, cudaStream_t handle) {
  Stream* stream = machine.stream(handle);
  if (!stream) return cudaErrorInvalidResourceHandle;
  if (!valid || !machine.settings.managed) return cudaErrorInvalidDevice;
  if (!bytes || !is_managed(machine, memory, bytes)) return cudaErrorInvalidValue;
  if (stream->capture) {
    stream->capture->valid = false;
    return cudaErrorStreamCaptureUnsupported;
  }
  Work work;
  work.device = stream->device, work.name = "a prefetch of " + std::to_string(bytes) + " bytes";
  work.run = [] {};
  return machine.enqueue(*stream, std::move(work));
}

cudaError_t advise(Machine& machine, const void* memory, size_t bytes, bool valid) {
  if (!valid) return cudaErrorInvalidDevice;
  return bytes && is_managed(machine, memory, bytes) ? cudaSuccess : cudaErrorInvalidValue;
}

constexpr unsigned int kPinning = cudaHostRegisterPortable | cudaHostRegisterMapped;
static_assert(kPinning == (cudaHostAllocPortable | cudaHostAllocMapped));

bool can_be_pinned(const Machine& machine, size_t bytes) {
  size_t pinned = 0;
  for (const auto& [begin, other] : machine.blocks)
    if (is_pinned(other)) pinned += other.bytes;
  const size_t limit = machine.settings.pin_limit;
  return pinned <= limit && bytes <= limit - pinned;
}

bool is_device(Machine& machine, int device) { return device >= 0 && device < std::ssize(machine.devices); }

#if CUDART_VERSION >= 13000
bool is_location(Machine& machine, cudaMemLocation at) {
  return at.type == cudaMemLocationTypeDevice ? is_device(machine, at.id) : at.type >= cudaMemLocationTypeHost;
}
#endif

}  // namespace

cudaError_t cudaMemGetInfo(size_t* free, size_t* total) {
  return call("cudaMemGetInfo", kPlain, [&](Machine& machine) {
    if (!free || !total) return cudaErrorInvalidValue;
    const Arena& arena = machine.present().arena;
    const size_t used = arena.used() + machine.settings.other_use;
    *total = arena.capacity();
    *free = used < *total ? *total - used : 0;
    return cudaSuccess;
  });
}

cudaError_t cudaMalloc(void** memory, size_t bytes) {
  return call("cudaMalloc", kUnsafeInCapture, [&](Machine& machine) {
    if (!memory) return cudaErrorInvalidValue;
    *memory = nullptr;
    if (!bytes) return cudaSuccess;
    Arena& arena = machine.present().arena;
    const size_t used = arena.used() + machine.settings.other_use;
    if (used > arena.capacity() || bytes > arena.capacity() - used) return cudaErrorMemoryAllocation;
    std::byte* const made = arena.allocate(bytes);
    if (!made) return cudaErrorMemoryAllocation;
    machine.blocks[reinterpret_cast<uintptr_t>(made)] = {bytes, Place::kDevice, host_thread().present(), made};
    ++machine.counters.allocations;
    *memory = made;
    return cudaSuccess;
  });
}

cudaError_t cudaMallocManaged(void** memory, size_t bytes, unsigned int flags) {
  return call("cudaMallocManaged", kUnsafeInCapture, [&](Machine& machine) {
    if (!memory || !bytes || flags != cudaMemAttachGlobal) return cudaErrorInvalidValue;
    auto* const made = static_cast<std::byte*>(::operator new (bytes, std::align_val_t{4096}, std::nothrow));
    if (!made) return cudaErrorMemoryAllocation;
    std::memset(made, 0, bytes);
    machine.blocks[reinterpret_cast<uintptr_t>(made)] = {bytes, Place::kManaged, host_thread().present(), made};
    ++machine.counters.allocations;
    *memory = made;
    return cudaSuccess;
  });
}

cudaError_t cudaFree(void* memory) {
  return call("cudaFree", kUnsafeInCapture | kSynchronizes, [&](Machine& machine) {
    if (!memory) return cudaSuccess;
    const auto it = machine.blocks.find(reinterpret_cast<uintptr_t>(memory));
    if (it == machine.blocks.end() || it->second.place < Place::kDevice) {
      machine.misuse("cudaFree of memory that is not allocated");
      return cudaErrorInvalidValue;
    }
    const Block block = it->second;
    machine.force_all(block.device);
    if (block.place == Place::kManaged)
      ::operator delete (memory, std::align_val_t{4096});
    else if (!machine.devices[static_cast<size_t>(block.device)]->arena.free(block.begin, block.bytes))
      machine.misuse("memory of " + std::to_string(block.bytes) + " bytes was written beyond its end");
    machine.blocks.erase(it);
    return cudaSuccess;
  });
}

cudaError_t cudaHostRegister(void* memory, size_t bytes, unsigned int flags) {
  return call("cudaHostRegister", kUnsafeInCapture, [&](Machine& machine) {
    if (!memory || !bytes || flags & ~(kPinning | cudaHostRegisterReadOnly)) return cudaErrorInvalidValue;
    if (!machine.settings.registers) return cudaErrorNotSupported;
    Block block;
    if (!locate(machine.blocks, memory, bytes, block) || block.place != Place::kPageable)
      return cudaErrorHostMemoryAlreadyRegistered;
    if (!can_be_pinned(machine, bytes)) return cudaErrorMemoryAllocation;
    machine.blocks[reinterpret_cast<uintptr_t>(memory)] = {bytes, Place::kRegistered, host_thread().present(),
                                                           static_cast<std::byte*>(memory)};
    ++machine.counters.registrations;
    return cudaSuccess;
  });
}

// Memory that was freed last. A driver may give such pages to the next who asks.
struct Spare {
  void* memory = nullptr;
  size_t bytes = 0;
};
static Spare spare;

cudaError_t cudaHostAlloc(void** memory, size_t bytes, unsigned int flags) {
  return call("cudaHostAlloc", kUnsafeInCapture, [&](Machine& machine) {
    if (!memory || !bytes || flags & ~kPinning) return cudaErrorInvalidValue;
    *memory = nullptr;
    if (!can_be_pinned(machine, bytes)) return cudaErrorMemoryAllocation;
    void* const made = spare.bytes == bytes
                           ? std::exchange(spare, {}).memory
                           : mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (made == MAP_FAILED) return cudaErrorMemoryAllocation;
    machine.blocks[reinterpret_cast<uintptr_t>(made)] = {bytes, Place::kHostAllocated, host_thread().present(),
                                                         static_cast<std::byte*>(made)};
    *memory = made;
    return cudaSuccess;
  });
}

cudaError_t cudaFreeHost(void* memory) {
  return call("cudaFreeHost", kUnsafeInCapture | kSynchronizes, [&](Machine& machine) {
    if (!memory) return cudaSuccess;
    const auto it = machine.blocks.find(reinterpret_cast<uintptr_t>(memory));
    if (it == machine.blocks.end() || it->second.place != Place::kHostAllocated) {
      machine.misuse("cudaFreeHost of memory that is not allocated");
      return cudaErrorInvalidValue;
    }
    machine.force_all(it->second.device);
    if (spare.memory) munmap(spare.memory, spare.bytes);
    spare = {memory, it->second.bytes};
    machine.blocks.erase(it);
    return cudaSuccess;
  });
}

cudaError_t cudaHostUnregister(void* memory) {
  return call("cudaHostUnregister", kUnsafeInCapture, [&](Machine& machine) {
    const auto it = machine.blocks.find(reinterpret_cast<uintptr_t>(memory));
    if (it == machine.blocks.end() || it->second.place != Place::kRegistered) return cudaErrorHostMemoryNotRegistered;
    machine.check_unused({it->second.begin, it->second.bytes}, "host memory is unregistered");
    machine.blocks.erase(it);
    return cudaSuccess;
  });
}

cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* out, const void* memory) {
  return call("cudaPointerGetAttributes", kPlain, [&](Machine& machine) {
    if (!out || !memory) return cudaErrorInvalidValue;
    const Block* block = find_block(machine.blocks, memory);
    auto* const address = const_cast<void*>(memory);
    *out = {cudaMemoryTypeUnregistered, -1, nullptr, address};
    if (!block) return cudaSuccess;
    out->device = block->device, out->devicePointer = address;
    out->type = is_pinned(*block)                ? cudaMemoryTypeHost
                : block->place == Place::kDevice ? cudaMemoryTypeDevice
                                                 : cudaMemoryTypeManaged;
    if (block->place == Place::kDevice) out->hostPointer = nullptr;
    return cudaSuccess;
  });
}

cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind kind, cudaStream_t stream) {
  return call("cudaMemcpyAsync", kPlain,
              [&](Machine& machine) { return copy(machine, to, from, bytes, kind, stream); });
}

#if CUDART_VERSION >= 13000
cudaError_t cudaMemPrefetchAsync(const void* memory, size_t bytes, cudaMemLocation location, unsigned int flags,
                                 cudaStream_t stream) {
  return call("cudaMemPrefetchAsync", kPlain, [&](Machine& machine) {
    return prefetch(machine, memory, bytes, is_location(machine, location) && !flags, stream);
  });
}
cudaError_t cudaMemAdvise(const void* memory, size_t bytes, cudaMemoryAdvise, cudaMemLocation location) {
  return call("cudaMemAdvise", kPlain,
              [&](Machine& machine) { return advise(machine, memory, bytes, is_location(machine, location)); });
}
#else
cudaError_t cudaMemPrefetchAsync(const void* memory, size_t bytes, int device, cudaStream_t stream) {
  return call("cudaMemPrefetchAsync", kPlain, [&](Machine& machine) {
    return prefetch(machine, memory, bytes, device == cudaCpuDeviceId || is_device(machine, device), stream);
  });
}
cudaError_t cudaMemAdvise(const void* memory, size_t bytes, cudaMemoryAdvise, int device) {
  return call("cudaMemAdvise", kPlain, [&](Machine& machine) {
    return advise(machine, memory, bytes, device == cudaCpuDeviceId || is_device(machine, device));
  });
}
#endif
