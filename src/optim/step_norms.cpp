// Computes norms of whole parameters, for rules whose arguments need them (LAMB, LARS), in a pass over what the step
// will read. Sums are exact, so no bit depends on threads, chunks or tiers.
#include <bit>
#include <cmath>
#include <mutex>

#include "backend/kernels/sums.h"
#include "core/exact_sum.h"
#include "core/thread_pool.h"
#include "optim/step_plan.h"

namespace lowtide {
namespace {

// One call of the backend returns 1 MiB of results.
constexpr int64_t kBlocksAtOnce = int64_t{1} << 16;
// A thread adds this many at a time: about 30 us of work, beside which merging sums is negligible.
constexpr int64_t kBlocksOfThread = int64_t{1} << 12;

}  // namespace

int64_t blocks_of(const StepItem& item) {
  return item.blocks >= 0 ? item.blocks : item.param_layout->blocks(kBlockElements) - item.first_block;
}

StepItem slice_of(const StepItem& item, int64_t begin, int64_t count) {
  StepItem out = item;
  const int64_t row = item.param_layout->row_length;
  out.first_block += begin;
  out.blocks = count;
  const int64_t elements = elements_before_block(row, out.first_block, kBlockElements) -
                           elements_before_block(row, item.first_block, kBlockElements);
  for (int k = 0; k < rule_info(item.rule).states; ++k) {
    const StateFormat& format = format_of(item.rule, item.codec, k);
    if (out.codes[k]) out.codes[k] = static_cast<std::byte*>(out.codes[k]) + format.code_bytes(elements);
    if (out.scales[k]) out.scales[k] += begin * format.scales;
  }
  if (out.master.residual)
    out.master.residual = static_cast<std::byte*>(out.master.residual) + residual_bytes(out.master.kind, elements);
  return out;
}

// Sums of squares by parameter number.
class StepPlan::NormSums {
 public:
  NormSums(const ParamTable& table, void* stream) : on_(table.on), stream_(stream), sums_(table.params.size()) {}

  void add(const StepItem& part, int64_t param) {
    for (int64_t begin = 0, all = blocks_of(part); begin < all;) {
      const int64_t count = std::min(all - begin, kBlocksAtOnce - waiting_blocks_);
      waiting_.push_back(slice_of(part, begin, count));
      owners_.push_back(param);
      waiting_blocks_ += count;
      begin += count;
      if (waiting_blocks_ == kBlocksAtOnce) add_waiting();
    }
  }
  void add_waiting() {
    if (waiting_.empty()) return;
    blocks_.resize(static_cast<size_t>(waiting_blocks_));
    on_.at_params.norms(waiting_, on_.threads, blocks_, stream_);
    std::span<const BlockNorms> left = blocks_;
    for (size_t i = 0; i < waiting_.size(); ++i) {
      const size_t count = static_cast<size_t>(waiting_[i].blocks);
      add_blocks(left.first(count), sums_[static_cast<size_t>(owners_[i])]);
      left = left.subspan(count);
    }
    waiting_.clear();
    owners_.clear();
    waiting_blocks_ = 0;
  }
  ParamNorms of(int64_t param) const {
    const Sums& sums = sums_[static_cast<size_t>(param)];
    return {std::sqrt(sums.of[0].value()), std::sqrt(sums.of[1].value())};
  }

 private:
  struct Sums {
    ExactSum of[2];

    void add(std::span<const BlockNorms> blocks) {
      // A unit is a normal power of two, so its exponent bits give the exponent.
      for (const BlockNorms& block : blocks)
        for (int k = 0; k < 2; ++k)
          of[k].add(block.sum[k], 2 * (static_cast<int>(std::bit_cast<uint32_t>(block.unit[k]) >> 23) - 127));
    }
  };

  void add_blocks(std::span<const BlockNorms> blocks, Sums& to) const {
    const int64_t count = static_cast<int64_t>(blocks.size());
    if (count <= kBlocksOfThread) return to.add(blocks);
    std::mutex merging;
    parallel_for((count + kBlocksOfThread - 1) / kBlocksOfThread, on_.threads, [&](int64_t piece) {
      const int64_t begin = piece * kBlocksOfThread;
      Sums part;
      part.add(
          blocks.subspan(static_cast<size_t>(begin), static_cast<size_t>(std::min(kBlocksOfThread, count - begin))));
      const std::lock_guard lock(merging);
      for (int k = 0; k < 2; ++k) to.of[k].merge(part.of[k]);
    });
  }

  const Backends& on_;
  void* stream_;
  std::vector<Sums> sums_;
  std::vector<StepItem> waiting_;
  std::vector<int64_t> owners_;  // the parameter of each waiting item
  int64_t waiting_blocks_ = 0;
  std::vector<BlockNorms> blocks_;
};

bool StepPlan::place_norms() {
  kernels::NormSums* const sums = table_.norm_sums();
  if (!sums) return false;
  for (size_t i = 0; i < items_.size(); ++i) {
    const int64_t number = params()[i];
    const Parameter& param = table_.params[static_cast<size_t>(number)];
    if (!rule_info(param.rule).norms) continue;
    items_[i].norms = sums + number;
    items_[i].hyper = &table_.group_of(param).hyper;
    items_[i].adds_norms = true;
  }
  return true;
}

void StepPlan::clear_norms() {
  const auto words = static_cast<int64_t>(table_.params.size() * sizeof(kernels::NormSums) / sizeof(uint32_t));
  table_.on.device->fill(options_.stream, table_.norm_sums(), 0, sizeof(uint32_t), words);
}

void StepPlan::add_streamed_norms() {
  pass_together(
      [&](const StepItem&, const Parameter& param) {
        if (!rule_info(param.rule).norms || !streams(param)) return Read::kNot;
        return param.norms_read_arrays() ? Read::kByChunks : Read::kAtOnce;
      },
      [&](std::span<const StepItem> items) { backend_.add_norms(items, options_.stream); });
  for (size_t i = 0; i < items_.size(); ++i)
    if (streams(table_.params[static_cast<size_t>(params()[i])])) items_[i].adds_norms = false;
}

void StepPlan::measure(size_t first, size_t count) {
  NormSums sums(table_, options_.stream);
  pass(
      first, count,
      [](const StepItem&, const Parameter& param) {
        if (!rule_info(param.rule).norms) return Read::kNot;  // its group has another rule
        return streams(param) && param.norms_read_arrays() ? Read::kByChunks : Read::kAtOnce;
      },
      [&](const StepItem& item, int64_t number) { sums.add(item, number); }, [&] { sums.add_waiting(); });
  buffers_.norms.resize(table_.params.size());
  for (size_t i = first; i < first + count; ++i) {
    const int64_t number = params()[i];
    const Parameter& param = table_.params[static_cast<size_t>(number)];
    if (!rule_info(param.rule).norms) continue;
    buffers_.norms[static_cast<size_t>(number)] = sums.of(number);
    set_args(param, number, param.steps, param.uninitialized, items_[i]);
  }
}

}  // namespace lowtide
