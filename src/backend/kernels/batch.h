// The items of a call as kernels read them: DeviceItems, the blocks before each, and the dims of strided tensors, one
// array of bytes to be copied to the device. Items that one launch serves are neighbours.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "backend/backend.h"
#include "backend/kernels/items.h"

namespace lowtide::kernels {

class Batch {
 public:
  struct Launch {
    int rule, codec;
    bool ballot;
    int64_t first, count;  // items
    int64_t blocks;
  };

  void clear();
  // Begins a launch; add() goes to it.
  void begin_launch(int rule, int codec, bool ballot = false) {
    launches_.push_back({rule, codec, ballot, size(), 0, 0});
  }
  // index: the item's position among the caller's.
  void add(const StepItem& item, int64_t index);
  void add(const CodecItem& item);
  void add(const ApplyItem& item);

  const std::vector<Launch>& launches() const { return launches_; }
  size_t bytes() const;
  // Writes bytes() bytes; `device` is where they will be.
  void write(std::byte* to, const std::byte* device);
  // Where a launch finds its items and their starts.
  const DeviceItem* items(const std::byte* device, const Launch& launch) const;
  const int64_t* starts(const std::byte* device, const Launch& launch) const;

 private:
  int64_t size() const { return static_cast<int64_t>(items_.size()); }
  DeviceTensor tensor(const void* data, DType dtype, const Layout& layout);
  void add(const DeviceItem& item, int64_t blocks);

  std::vector<DeviceItem> items_;  // with dims as positions in dims_ until they are written
  std::vector<int64_t> starts_, dims_;
  std::vector<Launch> launches_;
};

}  // namespace lowtide::kernels
