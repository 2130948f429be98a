// Memory of stepping a LLaMA of 220 million bfloat16 parameters on a SYCL device, with all optimizer state there, paged
// or managed.
//   device_memory TARGET STATE DEVICE_BYTES MANAGED STEPS     TARGET: gpu, cpu or best; DEVICE_BYTES of state, -1: no
//   limit
// Prints a line: the device's kind; bytes of parameters and gradients; of state on the device, in host memory and
// managed; bytes moved in a step; resident memory of the process before and its peak; seconds of the last step; a hash
// of the parameters.
#include <sys/resource.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <fstream>
#include <string>
#include <vector>

#include "backend/registry.h"
#include "lowtide/optimizer.h"

namespace {

using namespace lowtide;

struct Matrix {
  std::vector<int64_t> sizes;
  int64_t numel() const {
    int64_t n = 1;
    for (const int64_t size : sizes) n *= size;
    return n;
  }
};

std::vector<Matrix> llama() {
  constexpr int64_t kWidth = 1024, kFfn = 2816, kVocab = 32000;
  std::vector<Matrix> all{{{kVocab, kWidth}}};
  for (int layer = 0; layer < 12; ++layer) {
    for (int i = 0; i < 4; ++i) all.push_back({{kWidth, kWidth}});
    for (int i = 0; i < 2; ++i) all.push_back({{kFfn, kWidth}});
    all.push_back({{kWidth, kFfn}});
    for (int i = 0; i < 2; ++i) all.push_back({{kWidth}});
  }
  all.push_back({{kWidth}});
  all.push_back({{kVocab, kWidth}});
  return all;
}

int64_t resident_bytes() {
  int64_t pages = 0, resident = 0;
  std::ifstream("/proc/self/statm") >> pages >> resident;
  return resident * 4096;
}

int64_t peak_bytes() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return usage.ru_maxrss * 1024;
}

// bfloat16 numbers below 2^-6, the same in every process.
void randomize(std::vector<uint16_t>& values, uint64_t& seed) {
  for (uint16_t& value : values) {
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    const auto random = static_cast<uint16_t>(seed >> 48);
    value = static_cast<uint16_t>((random & 0x807f) | ((116 + (random >> 8 & 3)) << 7));
  }
}

struct Arguments {
  std::string target, state;
  Memory memory;
  int steps;
};

void run(const Arguments& given) {
  const auto backend = open_backend("sycl", given.target);
  Device& device = *backend->device();
  OptimizerOptions options;
  options.backend = "sycl";
  options.device = given.target;
  options.nonfinite = NonFinite::kPropagate;
  options.memory = given.memory;
  Optimizer optimizer(options);
  GroupOptions group;
  group.hyper = default_hyper("adamw");
  group.state = given.state;
  optimizer.add_group(group);

  const int64_t before = resident_bytes();
  const std::vector<Matrix> shapes = llama();
  std::vector<DeviceBytes> params, grads;
  std::vector<Gradient> gradients;
  std::vector<uint16_t> values;
  uint64_t seed = 1;
  int64_t weights = 0;
  for (const Matrix& shape : shapes) {
    const int64_t bytes = shape.numel() * 2;
    weights += bytes;
    values.resize(static_cast<size_t>(shape.numel()));
    for (auto* to : {&params, &grads}) {
      to->emplace_back(device, MemoryKind::kDevice, bytes);
      randomize(values, seed);
      device.copy(nullptr, to->back().data(), values.data(), bytes);
      device.host_wait(device.record(nullptr));
    }
    optimizer.add_param(0, {params.back().data(), DType::kBF16, shape.sizes, {}});
    gradients.push_back({grads.back().data(), DType::kBF16, nullptr});
  }
  values = {};
  double seconds = 0;
  for (int step = 0; step < given.steps; ++step) {
    const auto start = std::chrono::steady_clock::now();
    optimizer.step(gradients);
    optimizer.synchronize();
    seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  }
  const MemoryReport report = optimizer.report();
  const int64_t peak = peak_bytes();
  uint64_t hash = 0;
  for (size_t i = 0; i < shapes.size(); ++i) {
    values.resize(static_cast<size_t>(shapes[i].numel()));
    device.copy(nullptr, values.data(), params[i].data(), shapes[i].numel() * 2);
    device.host_wait(device.record(nullptr));
    for (const uint16_t value : values) hash = (hash ^ value) * 0x9e3779b97f4a7c15u;
  }
  std::printf("%s %lld %lld %lld %lld %lld %lld %lld %.4f %016llx\n", backend->target(),
              static_cast<long long>(2 * weights), static_cast<long long>(report.device_bytes),
              static_cast<long long>(report.allocated_bytes), static_cast<long long>(report.managed_bytes),
              static_cast<long long>(report.moved_per_step), static_cast<long long>(before),
              static_cast<long long>(peak), seconds, static_cast<unsigned long long>(hash));
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 6) return std::fprintf(stderr, "device_memory TARGET STATE DEVICE_BYTES MANAGED STEPS\n"), 2;
  try {
    Memory memory;
    memory.device = std::atoll(argv[3]);
    memory.managed = std::atoi(argv[4]) != 0;
    const std::string target = argv[1];
    run({target == "best" ? "" : target, argv[2], memory, std::atoi(argv[5])});
  } catch (const std::exception& error) {
    return std::fprintf(stderr, "device_memory: %s\n", error.what()), 1;
  }
  return 0;
}
