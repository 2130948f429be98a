// Measures the start-up cost of a process before its first SYCL step: loading the plug-in, opening the device, and the
// first call of each kernel program, which the driver compiles then, against the second call.
//   sycl_startup [gpu|cpu]
#include <chrono>
#include <cstdio>
#include <cstring>
#include <exception>
#include <memory>
#include <string>
#include <sycl/sycl.hpp>
#include <vector>

#include "backend/catalog.h"
#include "backend/registry.h"

namespace {

using namespace lowtide;

template <class Fn>
double milliseconds(Fn&& act) {
  const auto start = std::chrono::steady_clock::now();
  act();
  return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count();
}

// One block of a parameter on the device, all zero.
struct Problem {
  static constexpr int64_t kElements = kBlockElements;
  sycl::queue queue;
  float* arrays;
  Layout layout;
  alignas(16) std::byte args[kArgsBytes] = {};

  explicit Problem(const sycl::queue& on) : queue(on) {
    const int64_t sizes[] = {kElements};
    layout = Layout::make(sizes, {});
    constexpr size_t kFloats = size_t{kElements} * (2 + kMaxStates) + kMaxStates;
    arrays = sycl::malloc_device<float>(kFloats, queue);
    queue.memset(arrays, 0, kFloats * sizeof(float)).wait();
  }
  ~Problem() { sycl::free(arrays, queue); }
  Problem(const Problem&) = delete;

  StepItem item(int rule, int codec) {
    rules()[static_cast<size_t>(rule)].make_args(
        {.lr = 1e-3, .beta1 = 0.9, .beta2 = 0.99, .eps = 1e-8, .momentum = 0.9, .t = 1, .first = true}, args);
    StepItem out;
    out.param = arrays, out.grad = arrays + kElements;
    out.param_layout = out.grad_layout = &layout;
    out.rule = rule, out.codec = codec, out.args = args;
    for (int k = 0; k < kMaxStates; ++k) {
      out.codes[k] = arrays + (2 + k) * kElements;
      out.scales[k] = arrays + (2 + kMaxStates) * kElements + k;
    }
    return out;
  }
};

void run(const std::string& target) {
  double total = 0;
  const auto once = [&](const char* what, auto&& act) {
    const double ms = milliseconds(act);
    total += ms;
    std::printf("%-36s %9.2f ms\n", what, ms);
  };
  // The report loads the plug-in and finds the drivers.
  once("plug-in, drivers and devices", [&] { report_backends(); });
  std::unique_ptr<Backend> backend;
  once("device opened", [&] { backend = open_backend("sycl", target); });
  const bool gpu = std::strcmp(backend->target(), "gpu") == 0;
  const sycl::device device = gpu ? sycl::device(sycl::gpu_selector_v) : sycl::device(sycl::cpu_selector_v);
  sycl::queue queue(device, sycl::property::queue::in_order());
  Problem problem(queue);
  std::printf("%s\n\n%-20s %16s %16s %16s\n", device.get_info<sycl::info::device::name>().c_str(), "program",
              "first call, ms", "next codecs, ms", "second call, ms");
  for (int rule = 0; rule < static_cast<int>(rules().size()); ++rule) {
    const auto step = [&](int codec) {
      const StepItem item = problem.item(rule, codec);
      backend->step({&item, 1}, 1, false, &queue);
      queue.wait();
    };
    const double first = milliseconds([&] { step(0); });
    const double others = milliseconds([&] {
      for (int codec = 1; codec < static_cast<int>(codecs().size()); ++codec) step(codec);
    });
    const double second = milliseconds([&] { step(0); });
    total += first + others;
    std::printf("step_%-15s %16.2f %16.2f %16.3f\n", rules()[static_cast<size_t>(rule)].name, first, others, second);
  }
  const auto look = [&] {
    const StepItem item = problem.item(0, 0);
    backend->first_nonfinite({&item, 1}, 1, &queue);
  };
  const double first = milliseconds(look), second = milliseconds(look);
  total += first;
  std::printf("%-20s %16.2f %16s %16.3f\n\nin all %.0f ms; a run pays for the programs that it uses\n", "aux", first,
              "", second, total);
}

}  // namespace

int main(int argc, char** argv) {
  try {
    run(argc > 1 ? argv[1] : "");
  } catch (const std::exception& error) {
    return std::fprintf(stderr, "sycl_startup: %s\n", error.what()), 1;
  }
  return 0;
}
