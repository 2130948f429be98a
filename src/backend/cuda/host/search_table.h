// Keeps the items of a check for non-finite gradients on the device. Usually the next check has the same items, and
// nothing needs to be copied.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "backend/backend.h"
#include "backend/cuda/host/events.h"
#include "backend/cuda/host/memory.h"
#include "backend/cuda/host/uploads.h"
#include "backend/kernels/batch.h"

namespace lowtide::cuda_host {

class SearchTable {
 public:
  explicit SearchTable(const DeviceInfo& info) : info_(info) {}
  // Waits for all readers.
  ~SearchTable() {
    if (used_) quietly(info_, [&] { return cudaEventSynchronize(Events::handle(used_)); });
  }
  SearchTable(const SearchTable&) = delete;
  SearchTable& operator=(const SearchTable&) = delete;

  // Returns true if the table holds these items, that is, if everything that a check reads is unchanged.
  bool holds(std::span<const StepItem> items) const {
    if (items.size() != sought_.size()) return false;
    for (size_t i = 0; i < items.size(); ++i)
      if (!items[i].grad_layout->contiguous || !(sought_[i] == Sought(items[i]))) return false;
    return !items.empty();
  }

  // Queues, on the stream, a copy of the batch to the table, with one launch over these items.
  void put(const Scope& scope, Uploads& uploads, const std::shared_ptr<Events>& events, cudaStream_t stream,
           std::span<const StepItem> items, kernels::Batch& batch) {
    sought_.clear();
    std::vector<Sought> next(items.begin(), items.end());
    const size_t bytes = batch.bytes();
    if (bytes > bytes_) {
      Events::wait(scope, used_);
      bytes_ = 0;
      memory_ = DeviceMemory(scope, bytes);
      bytes_ = bytes;
    }
    launch_ = batch.launches()[0];
    starts_ = batch.starts(memory_.data(), launch_);
    const auto write = [&](std::byte* host, std::byte* device) { batch.write(host, device); };
    wait(scope, stream);
    const Upload there(scope, uploads, events, stream, bytes, write, memory_.data());
    sought_ = std::move(next);
  }

  // Call this before queueing a check on the stream; orders the check after uses of the table on other streams.
  void wait(const Scope& scope, cudaStream_t stream) const {
    if (used_) scope.check(cudaStreamWaitEvent(stream, Events::handle(used_), 0));
  }
  // Call this after queueing the check.
  void note_use(Device::Event event) { used_ = std::move(event); }

  const kernels::Batch::Launch& launch() const { return launch_; }
  const kernels::DeviceItem* items() const { return reinterpret_cast<const kernels::DeviceItem*>(memory_.data()); }
  const int64_t* starts() const { return starts_; }

 private:
  // Everything that a check reads from an item with a contiguous gradient.
  struct Sought {
    explicit Sought(const StepItem& item)
        : grad(item.grad),
          row_length(item.param_layout->row_length),
          elements(item.param_layout->numel),
          first_block(item.first_block),
          blocks(item.blocks),
          scale(item.grad_scale),
          dtype(item.grad_dtype) {}
    bool operator==(const Sought&) const = default;

    const void* grad;
    int64_t row_length, elements, first_block, blocks;
    float scale;
    DType dtype;
  };

  const DeviceInfo& info_;
  DeviceMemory memory_;
  size_t bytes_ = 0;
  std::vector<Sought> sought_;
  kernels::Batch::Launch launch_{};
  const int64_t* starts_ = nullptr;
  Device::Event used_;  // event after the last check
};

}  // namespace lowtide::cuda_host
