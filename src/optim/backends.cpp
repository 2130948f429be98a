#include "optim/backends.h"

#include <cstring>

#include "backend/cpu/cpu_backend.h"
#include "backend/registry.h"
#include "core/error.h"
#include "core/thread_pool.h"

namespace lowtide {
namespace {

std::unique_ptr<Backend> open_elsewhere(const OptimizerOptions& options) {
  if (options.backend != "cpu") return open_backend(options.backend, options.device, options.stream);
  LT_REQUIRE(options.device.empty() && !options.stream,
             "got device '%s' and stream %p for the cpu backend, wanted none", options.device.c_str(), options.stream);
  return nullptr;
}

}  // namespace

Backends::Backends(const OptimizerOptions& options, std::unique_ptr<Backend> given)
    : host(cpu::make_backend(options.cpu_target)),
      elsewhere(given ? std::move(given) : open_elsewhere(options)),
      at_params(elsewhere ? *elsewhere : *host),
      device(at_params.device()) {
  set_threads(options.threads);
  if (options.trusts_memory && device) device->trust_memory();
  const DeviceAllocator& from = options.allocator;
  if (!from.allocate && !from.free && !from.note_use) return;
  LT_REQUIRE(from.allocate && from.free, "got an allocator without allocate or free, wanted both, or none at all");
  LT_REQUIRE(device, "got an allocator of device memory for parameters in host memory, wanted none");
  device->use_allocator({from.context, from.allocate, from.free});
  allocator = from;
}

void Backends::set_threads(int n) {
  LT_REQUIRE(n >= 0, "got threads=%d, wanted 0 (one per core) or more", n);
  threads = n ? n : available_threads();
}

void Backends::clear(void* at, int64_t bytes, void* stream) const {
  if (bytes == 0) return;
  if (device)
    device->fill(stream, at, 0, 1, bytes);
  else
    std::memset(at, 0, static_cast<size_t>(bytes));
}

}  // namespace lowtide
