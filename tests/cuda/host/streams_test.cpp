// Order: streams that run late, devices that are not the present one, and guards.
#include <limits>

#include "host_support.h"

namespace lowtide::cuda_host {
namespace {

class CudaStreams : public Emulated {};

// A step that waits, on its stream, for the search of its gradients.
std::shared_ptr<Guard> searched_step(Backend& backend, Model& model, cudaStream_t stream) {
  auto guard = backend.queue_guard(model.items(), stream);
  backend.step(model.items(1, guard.get()), 1, false, stream);
  return guard;
}

// Arguments of many steps are under way at once, in slots that are used again; the streams run them late, in any order.
TEST_F(CudaStreams, LateStreamsReadTheirOwnArguments) {
  int64_t steps = 0;
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    restart({.seed = seed});
    auto backend = make_backend("", nullptr);
    std::vector<cudaStream_t> streams = {own_stream(*backend), own_stream(*backend), nullptr};
    std::vector<std::unique_ptr<Model>> models;
    for (const cudaStream_t stream : streams)
      models.push_back(std::make_unique<Model>(*backend, std::vector<int64_t>{1, 300, 40}, stream));
    for (int step = 0; step < 15; ++step)
      for (size_t m = 0; m < models.size(); ++m, ++steps)
        backend->step(models[m]->items(static_cast<float>(m + 1)), 1, false, streams[m]);
    for (size_t m = 0; m < models.size(); ++m)
      EXPECT_EQ(models[m]->steps(), std::vector<int>(3, 15 * static_cast<int>(m + 1))) << "seed " << seed;
  }
  std::printf("%lld steps, 20 orders\n", static_cast<long long>(steps));
}

TEST_F(CudaStreams, AStepDoesNotWait) {
  auto backend = make_backend("", nullptr);
  const cudaStream_t stream = own_stream(*backend);
  Model model(*backend, {1, 300, 40}, stream);
  const auto step = [&] { return searched_step(*backend, model, stream); };
  for (int warm = 0; warm < 2; ++warm) {
    step();
    model.steps();
  }
  const auto before = cuda_emulator::counters();
  const auto guard = step();
  EXPECT_EQ(cuda_emulator::counters().synchronizing, before.synchronizing);
  EXPECT_EQ(cuda_emulator::counters().launches, before.launches) << "it was not late";
  EXPECT_EQ(guard->first(), -1);
  cuda_emulator::run_all();
  EXPECT_EQ(cuda_emulator::counters().launches - before.launches, 2) << "the search, and the step";
}

// The answer's way to the host is no part of what the step waits for: there are orders in which the step has run and
// nothing has been copied.
TEST_F(CudaStreams, AStepFollowsItsSearchAtOnce) {
  const auto copies = [] {
    const std::vector<std::string> ran = cuda_emulator::operations();
    return std::count(ran.begin(), ran.end(), "a copy of 4 bytes");
  };
  int before = 0;
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    restart({.seed = seed});
    auto backend = make_backend("", nullptr);
    const cudaStream_t stream = own_stream(*backend);
    Model model(*backend, {1, 300, 40}, stream);
    const auto step = [&] { return searched_step(*backend, model, stream); };
    EXPECT_EQ(step()->first(), -1);  // takes the memory: that waits
    cuda_emulator::run_all();
    const auto copied = copies();
    const auto guard = step();
    backend->device()->host_wait(backend->device()->record(stream));
    before += copies() == copied;
    EXPECT_EQ(guard->first(), -1);
    EXPECT_EQ(copies(), copied + 1);
    EXPECT_EQ(model.steps(), std::vector<int>(3, 2));
  }
  EXPECT_GT(before, 0);
  std::printf("in %d of 20 orders the step ran before the answer was copied\n", before);
}

TEST_F(CudaStreams, OfOtherDevicesAreRefused) {
  restart({.devices = 2});
  auto backend = make_backend(":1", nullptr);
  Model model(*backend, {50, 60}, own_stream(*backend));
  cudaStream_t foreign = nullptr;
  ASSERT_EQ(cudaStreamCreateWithFlags(&foreign, cudaStreamNonBlocking), cudaSuccess);
  expect_words(refusal([&] { backend->step(model.items(), 1, false, foreign); }),
               {"a stream of CUDA device 0", "device 1"});
  expect_words(refusal([&] { make_backend(":1", foreign); }), {":1", "device 0"});
  EXPECT_EQ(make_backend("", foreign)->device()->limits().total, int64_t{1} << 30);
  ASSERT_EQ(cudaStreamDestroy(foreign), cudaSuccess);
}

TEST_F(CudaStreams, EventsOrderStreams) {
  auto backend = make_backend("", nullptr);
  Device& device = *backend->device();
  const cudaStream_t one = own_stream(*backend), two = own_stream(*backend);
  DeviceBytes memory(device, MemoryKind::kDevice, 4), pinned(device, MemoryKind::kPinned, 4);
  for (uint32_t round = 1; round <= 50; ++round) {
    device.fill(one, memory.data(), round, 4, 1);
    const Device::Event filled = device.record(one);
    device.wait(two, filled);
    device.copy(two, pinned.data(), memory.data(), 4);
    const Device::Event copied = device.record(two);
    device.wait(one, copied);
    device.host_wait(copied);
    EXPECT_TRUE(device.has_happened(copied));
    uint32_t got;
    std::memcpy(&got, pinned.data(), sizeof got);
    EXPECT_EQ(got, round);
  }
  EXPECT_LE(cuda_emulator::held().events, 8) << "events are used again";
  EXPECT_TRUE(device.has_happened(nullptr));
}

// A step behind a search that finds something changes nothing, and nobody waits to know.
TEST_F(CudaStreams, GuardsHoldSteps) {
  auto backend = make_backend("", nullptr);
  const cudaStream_t stream = own_stream(*backend);
  Model model(*backend, {10, 300, 40}, stream);
  int held = 0;
  for (int step = 0; step < 30; ++step) {
    const int bad = step % 3;  // 2: none
    if (bad < 2) model.fill_gradient(static_cast<size_t>(bad + 1), std::numeric_limits<float>::infinity());
    const auto guard = backend->queue_guard(model.items(), stream);
    backend->step(model.items(1, guard.get()), 1, false, stream);
    if (bad < 2) model.fill_gradient(static_cast<size_t>(bad + 1), static_cast<float>(bad + 2));
    if (step % 2) {
      EXPECT_EQ(guard->first(), bad < 2 ? bad + 1 : -1);
    }
    held += bad < 2;
  }
  EXPECT_EQ(model.steps(), std::vector<int>(3, 10));
  EXPECT_EQ(backend->first_nonfinite(model.items(), 1, stream), -1);
  EXPECT_EQ(backend->first_nonfinite({}, 1, stream), -1);
  std::printf("%d of 30 steps held\n", held);
}

TEST_F(CudaStreams, AGuardOutlivesItsBackend) {
  auto backend = make_backend("", nullptr);
  std::shared_ptr<Guard> guard;
  {
    const cudaStream_t stream = own_stream(*backend);
    Model model(*backend, {10}, stream);
    guard = backend->queue_guard(model.items(), stream);
  }
  backend.reset();
  EXPECT_EQ(guard->first(), -1);
}

}  // namespace
}  // namespace lowtide::cuda_host
