// Which chunks in host memory a step on a device may still be changing. Once the device is lost nobody can tell any
// more, so the question is asked, without waiting, while the device can still answer.
#pragma once

#include <algorithm>
#include <utility>
#include <vector>

#include "backend/device.h"

namespace lowtide {

class HostWrites {
 public:
  // For so many chunks; all steps have happened.
  void resize(size_t chunks) { changing_.assign(chunks, false); }
  // A step that changes these chunks is about to be queued.
  void begin(const std::vector<int>& chunks) {
    for (const int chunk : chunks) changing_[static_cast<size_t>(chunk)] = true;
  }
  // All of that step is queued, and has happened when these have.
  void end(std::vector<Device::Event> all) { last_step_ = std::move(all); }
  // Asks whether the last step that was queued as a whole has happened.
  void ask(Device& device) {
    const auto happened = [&](const Device::Event& event) { return device.has_happened(event); };
    if (!last_step_.empty() && std::all_of(last_step_.begin(), last_step_.end(), happened)) all_happened();
  }
  // The host has waited for everything.
  void all_happened() {
    last_step_.clear();
    std::fill(changing_.begin(), changing_.end(), false);
  }
  bool may_change(size_t chunk) const { return changing_[chunk]; }

 private:
  std::vector<bool> changing_;
  std::vector<Device::Event> last_step_;
};

}  // namespace lowtide
