#include "backend/sycl/host/uploads.h"

#include <algorithm>
#include <bit>

namespace lowtide::sycl_host {
namespace {

bool is_done(const sycl::event& event) {
  return event.get_info<sycl::info::event::command_execution_status>() == sycl::info::event_command_status::complete;
}

}  // namespace

Uploads::~Uploads() {
  for (Slot& slot : slots_) {
    try {
      slot.used.wait();
    } catch (const sycl::exception&) {  // a lost device reads nothing
    }
  }
}

Uploads::Slot& Uploads::acquire(size_t bytes) {
  auto slot = std::find_if(slots_.begin(), slots_.end(), [](const Slot& s) { return is_done(s.used); });
  if (slot == slots_.end() && slots_.size() < kMostSlots) {
    slots_.push_back(Slot{UsmBytes(nullptr, Free{context_}), UsmBytes(nullptr, Free{context_}), 0, {}});
    slot = slots_.end() - 1;
  }
  if (slot == slots_.end()) {
    slot = slots_.begin() + static_cast<std::ptrdiff_t>(oldest_);
    oldest_ = (oldest_ + 1) % kMostSlots;
    slot->used.wait();
  }
  if (slot->bytes < bytes) {
    slot->bytes = 0;
    const size_t room = std::bit_ceil(std::max(bytes, size_t{4096}));
    slot->host = allocate(room, context_, device_, sycl::usm::alloc::host);
    slot->device = allocate(room, context_, device_, sycl::usm::alloc::device);
    slot->bytes = room;
  }
  return *slot;
}

}  // namespace lowtide::sycl_host
