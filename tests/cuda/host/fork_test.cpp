// Forks. Linux copies pages that are pinned for the long term (FOLL_PIN) when a process forks, each of them, so that a
// device's copies go on to reach the parent; madvise(2), MADV_DONTFORK: the child does not get them. CUDA, Runtime API,
// cudaErrorInitializationError: what calls say in the child of a process that has used CUDA.
#include <stdlib.h>

#include <algorithm>
#include <chrono>
#include <memory>

#include "host_support.h"
#include "lowtide/optimizer.h"
#include "pinned_pages.h"
#include "support/scratch_support.h"

namespace lowtide::cuda_host {
namespace {

using lowtide::testing::in_child;

constexpr int64_t kMiB = int64_t{1} << 20;

class CudaForks : public Emulated {};

struct Fork {
  double ms;           // of fork() in the parent; the fastest of some
  int64_t copied_mib;  // that the child has for itself
};
Fork measure_forks(int times) {
  using clock = std::chrono::steady_clock;
  Fork best{1e9, 0};
  for (int i = 0; i < times; ++i) {
    const auto start = clock::now();
    const pid_t child = fork();
    if (child == 0) _exit(static_cast<int>(std::min<int64_t>(private_bytes() / (4 * kMiB), 255)));
    best.ms = std::min(best.ms, std::chrono::duration<double, std::milli>(clock::now() - start).count());
    int status = 0;
    EXPECT_EQ(waitpid(child, &status, 0), child);
    best.copied_mib = 4 * WEXITSTATUS(status);
  }
  return best;
}

// A fork copies no pinned state, but it copies memory that is pinned and not kept from children. The time of each is
// printed, not judged: it is the machine's.
TEST_F(CudaForks, CopyNoPinnedMemory) {
  constexpr size_t kBytes = 512 * kMiB;
  const Fork before = measure_forks(5);
  auto backend = make_backend("", nullptr);
  const DeviceBytes state(*backend->device(), MemoryKind::kPinned, kBytes);
  std::memset(state.data(), 1, kBytes);
  EXPECT_TRUE(has_flag(state.data(), kBytes, "dc"));
  const PinnedPages pinned(state.data(), kBytes);
  const Fork with = measure_forks(5);
  EXPECT_LT(with.copied_mib, before.copied_mib + 32);
  EXPECT_EQ(in_child([&] { return is_mapped(state.data(), kBytes); }), 0);

  constexpr size_t kOther = 64 * kMiB;
  void* const other = mmap(nullptr, kOther, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(other, MAP_FAILED);
  std::memset(other, 1, kOther);
  Fork copying{};
  {
    const PinnedPages theirs(other, kOther);
    EXPECT_FALSE(has_flag(other, kOther, "dc"));
    copying = measure_forks(1);
    if (theirs) {
      EXPECT_GE(copying.copied_mib, before.copied_mib + 60) << "this kernel does not copy pinned pages";
    }
  }
  munmap(other, kOther);
  const auto mib = [](const Fork& fork) { return static_cast<long long>(fork.copied_mib); };
  std::printf(
      "fork: %.2f ms, %lld MiB copied; with 512 MiB of state %s: %.2f ms, %lld MiB; with 64 MiB mapped by "
      "default: %.1f ms, %lld MiB\n",
      before.ms, mib(before), pinned ? "pinned" : "(not pinned: no io_uring here)", with.ms, mib(with), copying.ms,
      mib(copying));
}

// A child is refused everything by name, before CUDA is asked, and can destroy what it has inherited.
TEST_F(CudaForks, AChildIsRefused) {
  for (const bool registers : {true, false}) {
    restart({.registers = registers});
    auto backend = make_backend("", nullptr);
    Device& device = *backend->device();
    const cudaStream_t stream = own_stream(*backend);
    auto model = std::make_unique<Model>(*backend, std::vector<int64_t>{100, 1000}, stream);
    auto guard = backend->queue_guard(model->items(), stream);
    auto pinned = std::make_unique<DeviceBytes>(device, MemoryKind::kPinned, kMiB);
    backend->step(model->items(1, guard.get()), 1, false, stream);
    EXPECT_TRUE(has_flag(pinned->data(), kMiB, "dc"));
    const int64_t calls = cuda_emulator::counters().calls;
    const auto child = [&] {
      int refused = 0;
      const auto refuses = [&](ErrorKind kind, auto&& act) {
        expect_words(refusal(act, kind), {"forked", "spawn", "before any device is opened"});
        ++refused;
      };
      std::byte byte{};
      EXPECT_FALSE(is_mapped(pinned->data(), kMiB));
      EXPECT_TRUE(device.is_lost());
      refuses(ErrorKind::kUnsupported, [&] { make_backend("", nullptr); });
      refuses(ErrorKind::kDeviceLost, [&] { backend->step(model->items(), 1, false, stream); });
      refuses(ErrorKind::kDeviceLost, [&] { backend->first_nonfinite(model->items(), 1, stream); });
      refuses(ErrorKind::kDeviceLost, [&] { guard->first(); });
      refuses(ErrorKind::kDeviceLost, [&] { device.allocate(MemoryKind::kPinned, 1); });
      refuses(ErrorKind::kDeviceLost, [&] { device.copy(stream, &byte, pinned->data(), 1); });
      refuses(ErrorKind::kDeviceLost, [&] { device.host_wait(device.record(stream)); });
      refuses(ErrorKind::kDeviceLost, [&] { device.limits(); });
      guard.reset(), pinned.reset(), model.reset(), backend.reset();
      EXPECT_EQ(cuda_emulator::counters().calls, calls) << "CUDA was asked all the same";
      return refused == 8 && !HasFailure() ? 0 : 1;
    };
    EXPECT_EQ(in_child(child), 0);
    EXPECT_EQ(guard->first(), -1);
    EXPECT_EQ(model->steps(), (std::vector<int>{1, 1})) << "the parent goes on";
  }
}

// The driver's own pinned memory, which it may give to others when we have freed it: their children get it.
TEST_F(CudaForks, MemoryOfCudaIsGivenBackAsItWas) {
  restart({.registers = false});
  auto backend = make_backend("", nullptr);
  const void* ours = nullptr;
  {
    const DeviceBytes pinned(*backend->device(), MemoryKind::kPinned, kMiB);
    ours = pinned.data();
    EXPECT_TRUE(has_flag(ours, kMiB, "dc"));
  }
  void* theirs = nullptr;
  ASSERT_EQ(cudaHostAlloc(&theirs, kMiB, cudaHostAllocPortable), cudaSuccess);
  EXPECT_EQ(theirs, ours) << "the test sees nothing";
  EXPECT_FALSE(has_flag(theirs, kMiB, "dc"));
  EXPECT_EQ(in_child([&] { return is_mapped(theirs, kMiB) ? 1 : 0; }), 1);
  EXPECT_EQ(cudaFreeHost(theirs), cudaSuccess);
}

// A process that has opened no device can have children that do.
TEST_F(CudaForks, AreNoMatterBeforeADeviceIsOpened) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");  // this process may have opened one
  EXPECT_EXIT(
      {
        const int status = in_child([] {
          auto backend = make_backend("", nullptr);
          Model model(*backend, {100}, nullptr);
          backend->step(model.items(), 1, false, nullptr);
          return model.steps()[0] == 1 ? 7 : 8;
        });
        _exit(status);
      },
      ::testing::ExitedWithCode(7), "");
}

// The state of an optimizer in pinned memory: the child is told, by an error, that it cannot be read.
TEST_F(CudaForks, StateIsTheParents) {
  setenv("LOWTIDE_CUDA_PLUGIN", LT_CUDA_EMULATED, 1);
  constexpr int64_t kNumel = 400000;
  OptimizerOptions options;
  options.backend = "cuda";
  options.memory.chunk = 32 << 10;
  options.memory.device = 256 << 10;
  void* param = nullptr;
  void* grad = nullptr;
  ASSERT_EQ(cudaMalloc(&param, kNumel * 4), cudaSuccess);
  ASSERT_EQ(cudaMalloc(&grad, kNumel * 4), cudaSuccess);
  const std::vector<float> ones(kNumel, 1.f);
  for (void* const memory : {param, grad})
    ASSERT_EQ(cudaMemcpyAsync(memory, ones.data(), kNumel * 4, cudaMemcpyHostToDevice, nullptr), cudaSuccess);
  {
    auto optimizer = std::make_unique<Optimizer>(options);
    optimizer->add_group({});
    optimizer->add_param(0, {param, DType::kF32, {kNumel}, {}});
    const std::vector<Gradient> grads{{grad, DType::kF32, nullptr}};
    optimizer->step(grads);
    ASSERT_GT(optimizer->report().moved_per_step, 0) << "some of it is in pinned memory";
    const lowtide::testing::TemporaryDirectory directory;
    std::vector<float> before(kNumel), after(kNumel);
    optimizer->export_state(0, 0, before.data());
    const auto child = [&] {
      const auto refuses = [](auto&& act) { expect_words(refusal(act, ErrorKind::kDeviceLost), {"forked"}); };
      refuses([&] { optimizer->export_state(0, 0, after.data()); });
      refuses([&] { optimizer->import_state(0, 0, after.data()); });
      refuses([&] { optimizer->step(grads); });
      refuses([&] { optimizer->save(directory.path() + "/state"); });
      optimizer.reset();
      return HasFailure() ? 1 : 0;
    };
    EXPECT_EQ(in_child(child), 0);
    optimizer->export_state(0, 0, after.data());
    EXPECT_EQ(before, after);
    optimizer->step(grads);
    EXPECT_EQ(optimizer->report().steps, 2);
  }
  EXPECT_EQ(cudaFree(param), cudaSuccess);
  EXPECT_EQ(cudaFree(grad), cudaSuccess);
  unsetenv("LOWTIDE_CUDA_PLUGIN");
}

}  // namespace
}  // namespace lowtide::cuda_host
