// What kernels read besides tensors (items, starts, dims) goes to the device through slots: host memory that copies
// reach at once, device memory of the same size, and the event after which both may be written again. A call waits for
// the device only when so much is under way that another slot would be too many: see kAlways and kMostBytes.
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <list>
#include <utility>

namespace lowtide::kernels {

// Place: a backend's part, copyable, with
//   Slot          movable, made by {}; Slot::bytes is 0 until it has memory
//   is_done(slot), wait(slot), wait_at_end(slot) noexcept      about the event
//   allocate(slot, bytes)                                      sets host and device memory, not Slot::bytes
template <class Place>
class Slots {
 public:
  using Slot = typename Place::Slot;
  static constexpr size_t kAlways = 4;                      // slots, however large
  static constexpr size_t kMostBytes = size_t{4} << 20;     // of all slots where there are more
  static constexpr size_t kSmallestSlot = size_t{4} << 10;  // so of the most slots, too: a step has one for each chunk

  explicit Slots(Place place) : place_(std::move(place)) {}
  // Waits for all that still reads the slots.
  ~Slots() {
    for (Slot& slot : slots_) place_.wait_at_end(slot);
  }
  Slots(const Slots&) = delete;
  Slots& operator=(const Slots&) = delete;

  // A slot of at least `bytes` that nothing reads any more. The caller sets its event to the last that reads it.
  Slot& acquire(size_t bytes) {
    const size_t room = std::bit_ceil(std::max(bytes, kSmallestSlot));
    // Rather one that is large enough than one that has to grow, which waits for the device. Those after the first were
    // used later: they are not done before it.
    const auto large =
        std::find_if(slots_.begin(), slots_.end(), [&](const Slot& slot) { return slot.bytes >= bytes; });
    if (large != slots_.end() && place_.is_done(*large)) slots_.splice(slots_.begin(), slots_, large);
    const auto fits = [&](size_t more) { return bytes_ + more <= kMostBytes; };
    if ((slots_.empty() || !place_.is_done(slots_.front())) && (slots_.size() < kAlways || fits(room)))
      slots_.emplace_front();
    while (slots_.front().bytes < bytes && slots_.size() > kAlways && !fits(room - slots_.front().bytes)) {
      place_.wait(slots_.front());  // many small ones do not all become large
      bytes_ -= slots_.front().bytes;
      slots_.pop_front();
    }
    Slot& slot = slots_.front();
    place_.wait(slot);
    if (slot.bytes < bytes) {
      bytes_ -= std::exchange(slot.bytes, 0);
      place_.allocate(slot, room);
      slot.bytes = room;
      bytes_ += room;
    }
    slots_.splice(slots_.end(), slots_, slots_.begin());
    return slot;
  }

 private:
  Place place_;
  std::list<Slot> slots_;  // the least recently used first
  size_t bytes_ = 0;       // of all
};

}  // namespace lowtide::kernels
