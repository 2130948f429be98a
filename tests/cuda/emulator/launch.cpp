// Kernel attributes and launches.
#include <cstdio>

#include "machine.h"

namespace cuda_emulator {
namespace {

constexpr size_t kMostThreads = 1024, kMostArgumentBytes = 4096;
constexpr int kThreadsOfProcessor = 2048, kBlocksOfProcessor = 8;

std::pair<uint64_t, uint64_t> bounds(const Machine& machine, int device, uint64_t address) {
  const Block* block = find_block(machine.blocks, reinterpret_cast<const void*>(address));
  if (!block || block->place == Place::kPageable || (block->place == Place::kDevice && block->device != device))
    return {0, 0};
  const auto begin = reinterpret_cast<uint64_t>(block->begin);
  return {begin, begin + block->bytes};
}

}  // namespace

uint64_t meet(Meeting kind, unsigned int mask, uint64_t value, unsigned int source) {
  return Machine::get().runner.meet(kind, mask, value, source);
}
void meet_block() { Machine::get().runner.meet_block(); }
void fail_launch(const char* reason) { Machine::get().runner.fail(cudaErrorMisalignedAddress, reason); }

cudaError_t launch_grid(const cudaLaunchConfig_t* config, const void* kernel, size_t argument_bytes,
                        std::function<Failure(const Grid&)> run) {
  return call("cudaLaunchKernelEx", kPlain, [&](Machine& machine) {
    if (!config || !kernel || config->numAttrs || config->dynamicSmemBytes) return cudaErrorInvalidValue;
    const dim3 grid = config->gridDim, block = config->blockDim;
    if (!grid.x || grid.y != 1 || grid.z != 1 || !block.x || block.y != 1 || block.z != 1 || block.x > kMostThreads ||
        grid.x > 0x7fffffffu)
      return cudaErrorInvalidConfiguration;
    if (argument_bytes > kMostArgumentBytes) return cudaErrorInvalidValue;
    Stream* stream = machine.stream(config->stream);
    if (!stream || stream->device != host_thread().present()) return cudaErrorInvalidResourceHandle;
    Work work;
    work.kind = Work::Kind::kKernel, work.device = stream->device;
    char name[96];
    std::snprintf(name, sizeof name, "a kernel of %u blocks of %u threads", grid.x, block.x);
    work.name = name;
    work.run = [&machine, grid, block, run = std::move(run), device = stream->device, name = work.name] {
      machine.devices[static_cast<size_t>(device)]->arena.open();
      ++machine.counters.launches;
      machine.counters.blocks += grid.x;
      const Failure failure =
          run({grid, block, machine.random.next(), [&](uint64_t address) { return bounds(machine, device, address); }});
      if (failure.error == cudaSuccess) return;
      machine.misuse(name + ": " + failure.reason);
      machine.lose(device, failure.error, failure.reason);
    };
    return machine.enqueue(*stream, std::move(work));
  });
}

cudaError_t launch(const cudaLaunchConfig_t* config, const void* kernel, size_t argument_bytes,
                   std::function<void()> body) {
  return launch_grid(config, kernel, argument_bytes, [body = std::move(body)](const Grid& grid) {
    Machine& machine = Machine::get();
    return machine.runner.run(body, grid.blocks, grid.threads, machine.random);
  });
}

cudaError_t attributes(cudaFuncAttributes* out, const void* kernel) {
  return call("cudaFuncGetAttributes", kPlain, [&](Machine&) {
    if (!out || !kernel) return cudaErrorInvalidValue;
    *out = {};
    out->maxThreadsPerBlock = kMostThreads, out->numRegs = 64;
    out->ptxVersion = out->binaryVersion = 90;
    return cudaSuccess;
  });
}

cudaError_t occupancy(int* blocks, const void* kernel, int block_threads, size_t dynamic_bytes) {
  return call("cudaOccupancyMaxActiveBlocksPerMultiprocessor", kPlain, [&](Machine&) {
    if (!blocks || !kernel || block_threads < 1 || dynamic_bytes) return cudaErrorInvalidValue;
    *blocks = std::min(kBlocksOfProcessor, kThreadsOfProcessor / block_threads);
    return cudaSuccess;
  });
}

}  // namespace cuda_emulator
