// The C interface's handle for a device.
#pragma once

#include <memory>
#include <unordered_map>

#include "backend/backend.h"
#include "lowtide/lowtide_device.h"

struct lt_device {
  std::unique_ptr<lowtide::Backend> backend;
  void* queue = nullptr;
  std::unordered_map<void*, lowtide::DeviceBytes> memory;  // destroyed before the backend that allocated it

  lowtide::Device& device() { return *backend->device(); }
  void* queue_or_own(void* given) { return given ? given : queue; }
  void synchronize(void* on) { device().host_wait(device().record(on)); }
};
