#include "backend/sycl/host/uploads.h"

#include <algorithm>
#include <bit>
#include <utility>

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
  const size_t room = std::bit_ceil(std::max(bytes, kSmallestSlot));
  const auto fits = [&](size_t more) { return bytes_ + more <= kMostBytes; };
  if ((slots_.empty() || !is_done(slots_.front().used)) && (slots_.size() < kAlways || fits(room)))
    slots_.push_front(Slot{UsmBytes(nullptr, Free{context_}), UsmBytes(nullptr, Free{context_}), 0, {}});
  while (slots_.front().bytes < bytes && slots_.size() > kAlways && !fits(room - slots_.front().bytes)) {
    slots_.front().used.wait();  // many small ones do not all become large
    bytes_ -= slots_.front().bytes;
    slots_.pop_front();
  }
  slots_.front().used.wait();
  Slot& slot = slots_.front();
  if (slot.bytes < bytes) {
    bytes_ -= std::exchange(slot.bytes, 0);
    slot.host = allocate(room, context_, device_, sycl::usm::alloc::host);
    slot.device = allocate(room, context_, device_, sycl::usm::alloc::device);
    slot.bytes = room;
    bytes_ += room;
  }
  slots_.splice(slots_.end(), slots_, slots_.begin());
  return slot;
}

}  // namespace lowtide::sycl_host
