// Measures traffic between device and host in steps of AdamW whose float32 state exceeds the device: in managed memory,
// which a driver pages, and in chunks that Lowtide streams.
#pragma once

#include "backend/catalog.h"
#include "optim/optimizer_impl.h"
#include "support/device_twins.h"
#include "support/fake/fake_backend.h"
#include "support/test.h"

namespace lowtide::testing {

struct TrafficCase {
  int64_t page_bytes = fake::ManagedPages::kDefaultBytes;  // also the size of a chunk
  int64_t elements = 0;                                    // in all parameters
  int params = 1;
  int64_t device_bytes = 0;  // room for state: the driver's pages, or the budget
  int steps = 1;
};

struct Traffic {
  int64_t state_bytes = 0;       // bytes that the format needs
  int64_t device_bytes = 0;      // the most that the device held
  std::vector<int64_t> in, out;  // bytes to the device and to the host, for each step
};

// Steps all parameters on the fake device under `memory`, and calls seen() after each step, when nothing is under way.
template <class Seen>
Traffic run_traffic(const TrafficCase& c, const lowtide::Memory& memory, fake::FakeBackendOptions of, Seen&& seen) {
  of.says_total = int64_t{1} << 40;  // large, because managed state beyond the device would be refused
  auto backend = std::make_unique<fake::FakeBackend>(of);
  fake::FakeBackend& device = *backend;
  OptimizerOptions options{.rule = "adamw", .nonfinite = NonFinite::kPropagate, .threads = 1, .memory = memory};
  Optimizer optimizer = OptimizerEnv::make(options, system_env(), std::move(backend));
  GroupOptions group{.hyper = default_hyper("adamw"), .state = "fp32"};
  optimizer.add_group(group);
  const int64_t each = c.elements / c.params;
  std::vector<DeviceBytes> tensors;
  std::vector<Gradient> gradients;
  void* const queue = device.make_queue();
  for (int i = 0; i < c.params; ++i) {
    for (int k = 0; k < 2; ++k) {
      tensors.emplace_back(device, MemoryKind::kDevice, each * 4);
      device.fill(queue, tensors.back().data(), 0x3c000000, 4, each);
    }
    optimizer.add_param(0, {tensors[tensors.size() - 2].data(), DType::kF32, {each}, {}});
    gradients.push_back({tensors.back().data(), DType::kF32, nullptr});
  }
  Traffic out;
  StepOptions step{.stream = queue};
  for (int i = 0; i < c.steps; ++i) {
    optimizer.step(gradients, step);
    optimizer.synchronize();
    device.fake().synchronize();
    seen(optimizer, out);
  }
  out.state_bytes = optimizer.report().state_bytes;
  return out;
}

// Measures managed memory; the driver has device_bytes for its pages.
inline Traffic managed_traffic(const TrafficCase& c, uint64_t seed) {
  fake::ManagedPages pages(c.page_bytes, c.device_bytes);
  lowtide::Memory memory{.chunk = c.page_bytes, .managed = true};
  fake::FakeBackendOptions of{.seed = seed, .managed = &pages};
  int64_t in = 0, outward = 0;
  Traffic out = run_traffic(c, memory, of, [&](Optimizer&, Traffic& traffic) {
    traffic.in.push_back((pages.in() - in) * c.page_bytes);
    traffic.out.push_back((pages.out() - outward) * c.page_bytes);
    in = pages.in(), outward = pages.out();
  });
  out.device_bytes = std::min(pages.capacity(), pages.pages()) * c.page_bytes;
  return out;
}

// Measures chunks under a budget of device_bytes, slots included.
inline Traffic streamed_traffic(const TrafficCase& c, uint64_t seed) {
  lowtide::Memory memory{.chunk = c.page_bytes, .device = c.device_bytes, .transfer = "copy"};
  int64_t in = 0, outward = 0, most = 0;
  Traffic out = run_traffic(c, memory, {seed}, [&](Optimizer& optimizer, Traffic& traffic) {
    const MemoryReport report = optimizer.report();
    traffic.in.push_back(report.read_bytes - in);
    traffic.out.push_back(report.written_bytes - outward);
    in = report.read_bytes, outward = report.written_bytes;
    most = std::max(most, report.device_bytes);
  });
  out.device_bytes = most;
  return out;
}

}  // namespace lowtide::testing
