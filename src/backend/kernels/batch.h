// The items of a call in the form that kernels read, as one array of bytes for the device: DeviceItems, the units of
// work before each, the dims of strided tensors, and a counter for each launch, 0 at first. A launch's items are
// adjacent. A unit of work is a block, or a tile of several blocks of one item. Also the codecs' tables as bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "backend/backend.h"
#include "backend/kernels/items.h"
#include "backend/kernels/sums.h"

namespace lowtide::kernels {

class Batch {
 public:
  struct Launch {
    int rule, codec;
    bool ballot;
    int64_t first, count;  // items
    int64_t units;
    int64_t norms;                // its first item's place among items with norms; -1 for rules without
    bool puts_norms, adds_norms;  // whether norms go into arguments; whether any item first adds to sums

    bool operator==(const Launch&) const = default;
  };
  // unit_blocks: the number of blocks in a unit of work of a step.
  explicit Batch(int64_t unit_blocks = 1) : unit_blocks_(unit_blocks) {}

  void clear();
  // Adds steps of all items: one launch for all items with the same kernel or, if ordered, one per item.
  void add_steps(std::span<const StepItem> items, bool ordered);

  // Begins a launch; add() adds items to it.
  void begin_launch(int rule, int codec, bool ballot = false);
  // index: the item's index among the caller's. Counts work in units of unit_blocks.
  void add(const StepItem& item, int64_t index);
  // These count work in blocks.
  void add(const CodecItem& item);
  void add(const ApplyItem& item);

  // For steps in units of blocks: moves results for each block from the order of launches to that of the caller's
  // items.
  void take_norms(const BlockNorms* from, std::span<BlockNorms> out) const;

  const std::vector<Launch>& launches() const { return launches_; }
  size_t bytes() const;
  // Writes bytes() bytes; `device` is where they will be.
  void write(std::byte* to, const std::byte* device);
  // Return the addresses of a launch's items and of their starts.
  const DeviceItem* items(const std::byte* device, const Launch& launch) const;
  const int64_t* starts(const std::byte* device, const Launch& launch) const;
  // Returns the norms that accompany the launch's items, or nullptr for a rule without norms.
  const DeviceNorms* norms(const std::byte* device, const Launch& launch) const;
  // Returns the launch's counter, in which a kernel counts the units that are taken. launch: one of launches().
  int64_t* taken(std::byte* device, const Launch& launch) const;

  // The number of items.
  int64_t size() const { return static_cast<int64_t>(items_.size()); }

 private:
  DeviceTensor tensor(const void* data, DType dtype, const Layout& layout);
  void add(const DeviceItem& item, int64_t blocks, int64_t unit_blocks);
  void add_norms(const StepItem& item);

  int64_t unit_blocks_;
  std::vector<size_t> order_;      // scratch of add_steps, kept to reuse its memory
  std::vector<DeviceItem> items_;  // dims are indices into dims_ until write()
  std::vector<DeviceNorms> norms_;
  std::vector<int64_t> starts_, dims_;
  std::vector<Launch> launches_;
};

// Returns the codec's tables. Never empty, so that kernels always have an address.
std::vector<std::byte> codec_tables(int codec);

}  // namespace lowtide::kernels
