// The devices of the C interface: their memory, and order on their queues.
#include "backend/registry.h"
#include "capi/device.h"
#include "capi/guard.h"
#include "core/error.h"

using lowtide::Device;
using lowtide::DeviceBytes;
using lowtide::MemoryKind;
using lowtide::capi::guarded;
using lowtide::capi::on;
using lowtide::capi::require;

static_assert(LT_MEMORY_DEVICE == static_cast<int>(MemoryKind::kDevice) &&
              LT_MEMORY_PINNED == static_cast<int>(MemoryKind::kPinned) &&
              LT_MEMORY_SHARED == static_cast<int>(MemoryKind::kShared));

extern "C" {

lt_status lt_device_open(const char* backend, const char* device, void* queue, lt_device** out) {
  return guarded([&] {
    *require(out, "out") = nullptr;
    auto made = std::make_unique<lt_device>();
    const char* const name = backend ? backend : "sycl";
    made->backend = lowtide::open_backend(name, device ? device : "", queue);
    LT_REQUIRE(made->backend->device(), "got backend '%s', whose memory is the host's, wanted one of a device", name);
    made->queue = made->device().make_queue();
    *out = made.release();
  });
}

void lt_device_close(lt_device* device) {
  if (!device) return;
  guarded([&] { device->synchronize(device->queue); });  // a lost device no longer uses memory
  delete device;
}

lt_status lt_device_queue(lt_device* device, void** queue) {
  return on(device, "device", [&](lt_device& of) { *require(queue, "queue") = of.queue; });
}

lt_status lt_device_limits(lt_device* device, lt_device_limits_report* out) {
  return on(device, "device", [&](lt_device& of) {
    lowtide::capi::check_struct_size(require(out, "out")->struct_size);
    const Device::Limits limits = of.device().limits();
    lowtide::capi::copy_out({0, limits.total, limits.free, limits.largest_allocation}, out);
  });
}

lt_status lt_device_alloc(lt_device* device, int32_t kind, int64_t bytes, void** out) {
  return on(device, "device", [&](lt_device& of) {
    *require(out, "out") = nullptr;
    LT_REQUIRE(kind >= LT_MEMORY_DEVICE && kind <= LT_MEMORY_SHARED, "got kind=%d, wanted an lt_memory_kind", kind);
    LT_REQUIRE(bytes > 0, "got bytes=%lld, wanted more than 0", lowtide::ll(bytes));
    DeviceBytes memory(of.device(), static_cast<MemoryKind>(kind), bytes);
    void* const data = memory.data();
    of.memory.emplace(data, std::move(memory));
    *out = data;
  });
}

lt_status lt_device_free(lt_device* device, void* memory) {
  return on(device, "device", [&](lt_device& of) {
    LT_REQUIRE(!memory || of.memory.erase(memory), "got memory %p, wanted memory that this lt_device allocated",
               memory);
  });
}

lt_status lt_device_copy(lt_device* device, void* queue, void* to, const void* from, int64_t bytes) {
  return on(device, "device", [&](lt_device& of) {
    lowtide::capi::require_bytes(bytes);
    if (bytes) of.device().copy(of.queue_or_own(queue), require(to, "to"), require(from, "from"), bytes);
  });
}

lt_status lt_device_synchronize(lt_device* device, void* queue) {
  return on(device, "device", [&](lt_device& of) { of.synchronize(of.queue_or_own(queue)); });
}

}  // extern "C"
