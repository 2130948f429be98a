// Computes the directions of a step that changes nothing: it steps copies of the states and drops them.
#include <algorithm>

#include "core/buffer.h"
#include "optim/step_plan.h"

namespace lowtide {
namespace {

constexpr int64_t kRoom = int64_t{16} << 20;  // bytes of copies at a time
constexpr int64_t kAlignment = 64;

// An upper bound on the bytes of copies of `blocks` blocks of an item.
int64_t bytes_of(const StepItem& item, int64_t blocks) {
  int64_t sum = 0;
  for (int k = 0; k < rule_info(item.rule).states; ++k) {
    const StateFormat& format = format_of(item.rule, item.codec, k);
    sum += round_up(format.code_bytes(blocks * kBlockElements), kAlignment) +
           round_up(format.scale_bytes(blocks), kAlignment);
  }
  return sum;
}

}  // namespace

// Steps items with copies of their states, as many at a time as fit.
class StepPlan::StateCopies {
 public:
  StateCopies(ParamTable& table, StepBuffers& buffers, void* stream)
      : on_(table.on), stream_(stream), waiting_(buffers.moves) {
    if (on_.device && !buffers.device_copies.bytes())
      buffers.device_copies = DeviceBytes(*on_.device, MemoryKind::kDevice, kRoom);
    if (!on_.device) buffers.copies.resize(static_cast<size_t>(kRoom));
    memory_ = on_.device ? buffers.device_copies.data() : buffers.copies.data();
    waiting_.clear();
  }

  void add(const StepItem& item) {
    const int64_t all = blocks_of(item), most = std::max<int64_t>(kRoom / std::max<int64_t>(bytes_of(item, 1), 1), 1);
    for (int64_t begin = 0; begin < all;) {
      const int64_t count = std::min(all - begin, most);
      if (used_ + bytes_of(item, count) > kRoom) take();
      waiting_.push_back(copied(slice_of(item, begin, count)));
      begin += count;
    }
  }

  void take() {
    if (!waiting_.empty()) on_.at_params.step(waiting_, on_.threads, false, stream_);
    waiting_.clear();
    used_ = 0;
  }

 private:
  StepItem copied(StepItem item) {
    const int64_t row = item.param_layout->row_length;
    const int64_t elements = elements_before_block(row, item.first_block + item.blocks, kBlockElements) -
                             elements_before_block(row, item.first_block, kBlockElements);
    for (int k = 0; k < rule_info(item.rule).states; ++k) {
      const StateFormat& format = format_of(item.rule, item.codec, k);
      item.codes[k] = copy(item.codes[k], format.code_bytes(elements));
      if (item.scales[k])
        item.scales[k] = reinterpret_cast<float*>(copy(item.scales[k], format.scale_bytes(item.blocks)));
    }
    item.write_offset = 0;
    return item;
  }
  std::byte* copy(const void* from, int64_t bytes) {
    std::byte* const to = memory_ + used_;
    used_ += round_up(bytes, kAlignment);
    on_.copy(to, from, bytes, stream_);
    return to;
  }

  const Backends& on_;
  void* stream_;
  std::vector<StepItem>& waiting_;
  std::byte* memory_;
  int64_t used_ = 0;
};

void StepPlan::preview() {
  StateCopies copies(table_, buffers_, options_.stream);
  pass(
      0, items_.size(),
      [&](const StepItem& item, const Parameter& param) {
        return !is_direction(item, param) ? Read::kNot : streams(param) ? Read::kByChunks : Read::kAtOnce;
      },
      [&](const StepItem& item, int64_t) { copies.add(item); }, [&] { copies.take(); });
}

}  // namespace lowtide
