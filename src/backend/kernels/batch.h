// The items of a call as kernels read them: DeviceItems, the units of work before each, and the dims of strided
// tensors, in one array of bytes to be copied to the device; and a number for each launch, which begins as 0. Items
// served by one launch are adjacent. A unit of work is a block, or a tile of several blocks of one item. Also the
// codecs' tables as bytes.
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
    int64_t norms;                // of a rule that has them: of its first item among those of the batch; else -1
    bool puts_norms, adds_norms;  // into arguments; to sums before: of an item or more

    bool operator==(const Launch&) const = default;
  };
  // unit_blocks: blocks in a unit of work of steps.
  explicit Batch(int64_t unit_blocks = 1) : unit_blocks_(unit_blocks) {}

  void clear();
  // Adds steps of all items: one launch for all items with the same kernel or, if ordered, one per item.
  void add_steps(std::span<const StepItem> items, bool ordered);

  // Begins a launch, to which add() adds.
  void begin_launch(int rule, int codec, bool ballot = false);
  // index: the item's index among the caller's. In units of the shape.
  void add(const StepItem& item, int64_t index);
  // In blocks.
  void add(const CodecItem& item);
  void add(const ApplyItem& item);

  // For steps in units of blocks: moves the kernels' results for each block, launch by launch, to the positions of the
  // caller's items.
  void take_norms(const BlockNorms* from, std::span<BlockNorms> out) const;

  const std::vector<Launch>& launches() const { return launches_; }
  size_t bytes() const;
  // Writes bytes() bytes; `device` is where they will be.
  void write(std::byte* to, const std::byte* device);
  // The positions of a launch's items and their starts.
  const DeviceItem* items(const std::byte* device, const Launch& launch) const;
  const int64_t* starts(const std::byte* device, const Launch& launch) const;
  // Beside its items; nullptr for a rule without norms.
  const DeviceNorms* norms(const std::byte* device, const Launch& launch) const;
  // For a kernel that counts the units that have been taken. launch: one of launches().
  int64_t* taken(std::byte* device, const Launch& launch) const;

  // Items, stored consecutively.
  int64_t size() const { return static_cast<int64_t>(items_.size()); }

 private:
  DeviceTensor tensor(const void* data, DType dtype, const Layout& layout);
  void add(const DeviceItem& item, int64_t blocks, int64_t unit_blocks);
  void add_norms(const StepItem& item);

  int64_t unit_blocks_;
  std::vector<size_t> order_;      // scratch of add_steps, kept for its memory
  std::vector<DeviceItem> items_;  // with dims as indices into dims_ until they are written
  std::vector<DeviceNorms> norms_;
  std::vector<int64_t> starts_, dims_;
  std::vector<Launch> launches_;
};

// The tables of the codec with this number. Never empty, so that kernels always have an address.
std::vector<std::byte> codec_tables(int codec);

}  // namespace lowtide::kernels
