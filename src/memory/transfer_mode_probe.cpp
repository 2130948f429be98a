// Measures the transfer modes.
#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>
#include <vector>

#include "backend/backend.h"
#include "backend/catalog.h"
#include "core/buffer.h"
#include "core/error.h"
#include "core/layout.h"
#include "memory/transfer_mode.h"

namespace lowtide {
namespace {

using Clock = std::chrono::steady_clock;

// State of 8-bit AdamW for bfloat16 parameters and gradients, cut into chunks, in host and in device memory twice each.
class Bench {
 public:
  static constexpr int kChunks = 4;

  Bench(Backend& backend, int64_t bytes)
      : backend_(backend),
        device_(*backend.device()),
        chunk_(bytes / kChunks / kPageBytes * kPageBytes),
        elements_(chunk_ * kBlockElements / (2 * (kBlockElements + int64_t{sizeof(float)})) / kBlockElements *
                  kBlockElements),
        layout_(Layout::make(std::array{elements_}, {})) {
    for (void*& queue : queues_) queue = device_.make_queue();
    for (DeviceBytes& memory : host_) {
      memory = DeviceBytes(device_, MemoryKind::kPinned, kChunks * chunk_);
      std::memset(memory.data(), 0, static_cast<size_t>(memory.bytes()));
    }
    for (DeviceBytes& memory : near_) memory = DeviceBytes(device_, MemoryKind::kDevice, kChunks * chunk_);
    tensors_ = DeviceBytes(device_, MemoryKind::kDevice, 4 * elements_);
    for (const DeviceBytes* memory : {&near_[0], &near_[1], &tensors_})
      device_.fill(queues_[1], memory->data(), 0, 1, memory->bytes());
    finish();
    const RuleInput hyper{.lr = 1e-3, .beta1 = 0.9, .beta2 = 0.999, .eps = 1e-8, .first = true};
    rule_info(rule_).make_args(hyper, args_);
  }
  ~Bench() {
    try {
      finish();
    } catch (...) {  // a device that is lost uses nothing
    }
  }

  void in(int i) { device_.copy(queues_[0], at(near_[0], i), at(host_[0], i), chunk_); }
  void out(int i) { device_.copy(queues_[2], at(host_[1], i), at(near_[1], i), chunk_); }
  void step(const DeviceBytes& from, const DeviceBytes& to, int i) {
    StepItem item;
    item.param = tensors_.data();
    item.grad = tensors_.data() + 2 * elements_;
    item.param_layout = item.grad_layout = &layout_;
    item.param_dtype = item.grad_dtype = DType::kBF16;
    item.rule = rule_;
    item.codec = codec_;
    item.args = args_;
    std::byte* const codes = at(from, i);
    for (int k = 0; k < 2; ++k) {
      item.codes[k] = codes + k * elements_;
      item.scales[k] = reinterpret_cast<float*>(codes + 2 * elements_) + k * (elements_ / kBlockElements);
    }
    item.write_offset = at(to, i) - codes;
    backend_.step({&item, 1}, 1, false, queues_[1]);
  }
  void step_in_place(int i) { step(host_[0], host_[0], i); }
  void step_hybrid(int i) {
    in(i);
    device_.wait(queues_[1], device_.record(queues_[0]));
    step(near_[0], host_[1], i);
  }

  // Bytes per second of queueing this for all chunks: the best of three, after one that does not count.
  template <class Queue>
  double rate(Queue&& queue) {
    double best = 0;
    const auto begin = Clock::now();
    for (int pass = 0; pass < 4; ++pass) {
      const auto start = Clock::now();
      for (int i = 0; i < kChunks; ++i) queue(i);
      finish();
      const double seconds = std::chrono::duration<double>(Clock::now() - start).count();
      if (pass > 0 || seconds > 0.025) best = std::max(best, static_cast<double>(kChunks * chunk_) / seconds);
      if (std::chrono::duration<double>(Clock::now() - begin).count() > 0.025) break;  // a slow machine: enough
    }
    return best;
  }

 private:
  std::byte* at(const DeviceBytes& memory, int i) const { return memory.data() + i * chunk_; }
  void finish() {
    for (void* const queue : queues_) device_.host_wait(device_.record(queue));
  }

  Backend& backend_;
  Device& device_;
  int64_t chunk_, elements_;
  Layout layout_;
  const int rule_ = find_rule("adamw"), codec_ = find_codec("dynamic8");
  alignas(16) std::byte args_[kArgsBytes] = {};
  void* queues_[3] = {};
  DeviceBytes host_[2], near_[2], tensors_;
};

}  // namespace

TransferRates measure_transfer_rates(Backend& backend, int64_t bytes) {
  Bench bench(backend, bytes);
  TransferRates rates;
  rates.in = bench.rate([&](int i) { bench.in(i); });
  rates.out = bench.rate([&](int i) { bench.out(i); });
  rates.copy = bench.rate([&](int i) { bench.in(i), bench.out(i); });
  rates.hybrid = bench.rate([&](int i) { bench.step_hybrid(i); });
  rates.zero_copy = bench.rate([&](int i) { bench.step_in_place(i); });
  return rates;
}

}  // namespace lowtide
