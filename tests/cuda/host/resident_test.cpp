// Counts the host's launches and waits in a step with all state on the device, through the plug-in.
#include <gtest/gtest.h>

#include <random>
#include <set>

#include "host_support.h"
#include "lowtide/optimizer.h"

namespace lowtide::cuda_host {
namespace {

class CudaResident : public ThroughPlugin {};

// Parameters of all sizes and three pairs of types, and their gradients, all of zero bytes.
struct Parameters {
  static constexpr DType kTypes[][2] = {
      {DType::kF32, DType::kF32}, {DType::kBF16, DType::kBF16}, {DType::kBF16, DType::kF32}};

  Parameters(Optimizer& optimizer, int count) {
    optimizer.add_group({});
    std::set<std::string> codecs;
    for (int i = 0; i < count; ++i) {
      const auto [type, grad_type] = kTypes[i % 3];
      sizes.push_back(i % 2 ? 40 + i : 5000 + 100 * i);
      const int64_t param = optimizer.add_param(0, {take(sizes.back(), type), type, {sizes.back()}, {}});
      grads.push_back({take(sizes.back(), grad_type), grad_type, nullptr});
      codecs.insert(optimizer.state_codec(param));
    }
    launches = static_cast<int64_t>(codecs.size());
  }
  ~Parameters() {
    for (void* const memory : taken) EXPECT_EQ(cudaFree(memory), cudaSuccess);
  }
  void* take(int64_t elements, DType type) {
    const auto bytes = static_cast<size_t>(elements * dtype_bytes(type));
    const std::vector<std::byte> zeros(bytes);
    taken.push_back(nullptr);
    EXPECT_EQ(cudaMalloc(&taken.back(), bytes), cudaSuccess);
    EXPECT_EQ(cudaMemcpyAsync(taken.back(), zeros.data(), bytes, cudaMemcpyHostToDevice, nullptr), cudaSuccess);
    EXPECT_EQ(cudaStreamSynchronize(nullptr), cudaSuccess);
    return taken.back();
  }

  std::deque<int64_t> sizes;
  std::vector<void*> taken;
  std::vector<Gradient> grads;
  int64_t launches = 0;  // one for each codec
};

// Options of an optimizer with all state on the device.
OptimizerOptions resident(NonFinite nonfinite = NonFinite::kSkip) {
  OptimizerOptions options;
  options.backend = "cuda";
  options.nonfinite = nonfinite;
  options.memory.device = 64 << 20;
  return options;
}

// The launches of a call that neither waits nor allocates, once the device has run them, as other work has it do before
// the next step.
template <class Fn>
int64_t launches_of(Fn&& call) {
  const auto before = cuda_emulator::counters();
  call();
  const auto after = cuda_emulator::counters();
  EXPECT_EQ(after.synchronizing, before.synchronizing) << "waited";
  EXPECT_EQ(after.allocations, before.allocations);
  cuda_emulator::run_all();
  return cuda_emulator::counters().launches - before.launches;
}

// A stream of the caller's that steps are captured on.
struct Capturing {
  Capturing() {
    EXPECT_EQ(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), cudaSuccess);
    on.stream = stream;
  }
  ~Capturing() { EXPECT_EQ(cudaStreamDestroy(stream), cudaSuccess); }
  void begin() const { EXPECT_EQ(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal), cudaSuccess); }

  cudaStream_t stream = nullptr;
  StepOptions on;
};

TEST_F(CudaResident, StepsAreAFewLaunchesAndWaitForNothing) {
  for (const bool automatic : {false, true})
    for (const NonFinite nonfinite : {NonFinite::kSkip, NonFinite::kRaise, NonFinite::kPropagate}) {
      restart({});
      OptimizerOptions options = resident(nonfinite);
      options.memory.chunk = 32 << 10;
      options.memory.automatic = automatic;
      if (automatic) options.memory.device = -1;
      Optimizer optimizer(options);
      Parameters params(optimizer, 50);
      // The buffers that a step needs at a time depend on how far the device is, which is random: one of these steps
      // needs the most.
      constexpr int kWarm = 32;
      for (int warm = 0; warm < kWarm; ++warm) {
        optimizer.step(params.grads);
        optimizer.synchronize();
      }
      const MemoryReport report = optimizer.report();
      ASSERT_EQ(report.moved_per_step, 0);
      ASSERT_GT(report.chunks, 2);
      const int64_t search = nonfinite == NonFinite::kPropagate ? 0 : 1;
      EXPECT_EQ(params.launches, 2);
      for (int step = 0; step < 3; ++step)
        EXPECT_EQ(launches_of([&] { optimizer.step(params.grads); }), params.launches + search);
      EXPECT_EQ(optimizer.report().steps, kWarm + 3);
      std::printf("%s, policy %d: 50 parameters in %lld chunks, %lld launches a step, no call that waits\n",
                  automatic ? "automatic" : "a budget", static_cast<int>(nonfinite),
                  static_cast<long long>(report.chunks), static_cast<long long>(params.launches + search));
    }
}

// A step of many tensors costs calls of CUDA's as one of few: none is about one of them.
TEST_F(CudaResident, CallsOfCudaAreAsManyForAnyNumberOfParameters) {
  constexpr int64_t kMost = 64;  // two of three ask for the context, and set and reset the mode of captures
  std::set<int64_t> all;
  for (const int count : {6, 40, 120}) {
    restart({});
    OptimizerOptions options = resident();
    options.trusts_memory = true;
    Optimizer optimizer(options);
    Parameters params(optimizer, count);
    for (int warm = 0; warm < 4; ++warm) {
      optimizer.step(params.grads);
      cuda_emulator::run_all();
    }
    const auto before = cuda_emulator::counters();
    optimizer.step(params.grads);
    const auto after = cuda_emulator::counters();
    all.insert(after.calls - before.calls);
    EXPECT_EQ(after.copies - before.copies, 2) << "the table of the step, and the verdict";
    cuda_emulator::run_all();
    std::printf("%d parameters: %lld calls of CUDA\n", count, static_cast<long long>(after.calls - before.calls));
  }
  EXPECT_EQ(all.size(), 1u);
  EXPECT_LE(*all.rbegin(), kMost);
}

// Only those who do not know their memory have CUDA asked for it, each time.
TEST_F(CudaResident, MemoryThatTheCallerKnowsIsNotAskedFor) {
  for (const bool trusts : {false, true}) {
    restart({});
    OptimizerOptions options;
    options.backend = "cuda";
    options.trusts_memory = trusts;
    Optimizer optimizer(options);
    Parameters params(optimizer, 10);
    optimizer.step(params.grads);
    for (int step = 0; step < 2; ++step) {
      cuda_emulator::fail("cudaPointerGetAttributes", {.error = cudaErrorNotSupported});
      if (trusts)
        optimizer.step(params.grads);
      else
        refusal([&] { optimizer.step(params.grads); }, ErrorKind::kUnsupported);
      cuda_emulator::forget_failures();
    }
    EXPECT_EQ(optimizer.report().steps, trusts ? 3 : 1);
  }
}

// Searches keep their table from call to call: whatever changes, on whatever stream, each finds what is in the
// gradients that it was given.
TEST_F(CudaResident, SearchesFindWhatIsInTheirOwnGradients) {
  constexpr int kSeeds = 20, kSearches = 30, kItems = 5;
  constexpr uint32_t kFine = 0x3f800000, kNan = 0x7fc00000, kLarge = 0x5e000000;  // 1, NaN, 2^61
  const std::vector<int64_t> sizes = {3, 300, 20000, 1, 70};
  int found = 0;
  for (uint64_t seed = 1; seed <= kSeeds; ++seed) {
    restart({.seed = seed});
    const auto backend = make_backend("", nullptr);
    Device& device = *backend->device();
    cudaStream_t streams[] = {own_stream(*backend), own_stream(*backend)};
    Model model(*backend, sizes, streams[0]);
    std::vector<DeviceBytes> buffers;
    std::vector<uint32_t> values;
    for (int i = 0; i < kItems; ++i)
      for (const uint32_t value : {kFine, kFine, kLarge, kNan}) {
        buffers.emplace_back(device, MemoryKind::kDevice, sizes[static_cast<size_t>(i)] * 4);
        device.fill(streams[0], buffers.back().data(), value, 4, sizes[static_cast<size_t>(i)]);
        values.push_back(value);
      }
    device.host_wait(device.record(streams[0]));
    std::mt19937 random(static_cast<uint32_t>(seed));
    std::vector<size_t> chosen(kItems);
    std::vector<std::pair<std::shared_ptr<Guard>, int64_t>> open;
    float scale = 1;
    size_t count = kItems;
    for (int search = 0; search < kSearches; ++search) {
      if (random() % 2) chosen[random() % kItems] = random() % 4;
      if (random() % 8 == 0) scale = scale == 1 ? 4 : 1;
      if (random() % 8 == 0) count = 1 + random() % kItems;
      std::vector<StepItem> items = model.items(scale);
      items.resize(count);
      int64_t first = -1;
      for (size_t i = 0; i < count; ++i) {
        const size_t at = 4 * i + chosen[i];
        items[i].grad = buffers[at].data();
        if (first < 0 && (values[at] == kNan || (values[at] == kLarge && scale > 1))) first = static_cast<int64_t>(i);
      }
      found += first >= 0;
      open.emplace_back(backend->queue_guard(items, streams[random() % 2]), first);
      if (random() % 3 == 0) {
        for (auto& [guard, wanted] : open)
          ASSERT_EQ(guard->first(), wanted) << "seed " << seed << ", search " << search;
        open.clear();
      }
    }
    for (auto& [guard, wanted] : open) ASSERT_EQ(guard->first(), wanted) << "seed " << seed;
  }
  EXPECT_GT(found, kSeeds * kSearches / 4);
  std::printf("%d searches on two streams, %d of which found something\n", kSeeds * kSearches, found);
}

// Neither the norm nor the factor comes by the host.
TEST_F(CudaResident, ClippedStepsWaitForNothing) {
  for (const NonFinite nonfinite : {NonFinite::kSkip, NonFinite::kPropagate}) {
    restart({});
    Optimizer optimizer(resident(nonfinite));
    Parameters params(optimizer, 50);
    StepOptions step;
    const auto clipped = [&] {
      step.clip = optimizer.queue_clip_grad_norm(params.grads, 1, 2, nullptr);
      optimizer.step(params.grads, step);
    };
    // Two steps at a time need the most memory for answers.
    constexpr int kWarm = 16;
    for (int warm = 0; warm < kWarm; ++warm) {
      clipped();
      if (warm % 2) optimizer.synchronize();
    }
    ASSERT_EQ(optimizer.report().moved_per_step, 0);
    const int64_t search = nonfinite == NonFinite::kPropagate ? 0 : 2;  // takes the factor, and finds it
    // Two clear the sums, one adds, one merges, one finds the factor, one puts it into the step's items.
    for (int i = 0; i < 3; ++i) EXPECT_EQ(launches_of(clipped), 6 + search + params.launches);
    EXPECT_EQ(optimizer.report().steps, kWarm + 3);
    EXPECT_EQ(Optimizer::clipped(*step.clip).norm, 0);
  }
  std::printf("clipped steps: no call that waits\n");
}

// Nor do norms of whole parameters, with and without a clip.
TEST_F(CudaResident, NormsWaitForNothing) {
  for (const char* const rule : {"lamb", "lars"})
    for (const bool clips : {false, true}) {
      restart({});
      OptimizerOptions options = resident();
      options.rule = rule;
      Optimizer optimizer(options);
      Parameters params(optimizer, 50);
      const auto stepped = [&] {
        StepOptions step;
        if (clips) step.clip = optimizer.queue_clip_grad_norm(params.grads, 1, 2, nullptr);
        optimizer.step(params.grads, step);
      };
      constexpr int kWarm = 32;
      for (int warm = 0; warm < kWarm; ++warm) {
        stepped();
        if (warm % 2) optimizer.synchronize();
      }
      for (int i = 0; i < 3; ++i) {
        const int64_t launches = launches_of(stepped);
        // As above; one clears the sums, one adds to them, one puts them into arguments. Norms that read state in the
        // budget's chunks are a call before the step's, whose items take the factor, too.
        const int64_t others = clips ? 6 + 2 + (optimizer.report().chunks > 0) : 1;
        EXPECT_EQ(launches, others + 1 + 3 * params.launches) << rule;
      }
      EXPECT_EQ(optimizer.report().steps, kWarm + 3);
    }
}

// A graph holds its own clips: replays would clip by the factor of one that was found before.
TEST_F(CudaResident, RecordedStepsClipByRecordedNorms) {
  const Capturing capture;
  const StepOptions& on = capture.on;
  Optimizer optimizer(resident());
  Parameters params(optimizer, 10);
  optimizer.step(params.grads, on);
  StepOptions clipping = on;
  clipping.clip = optimizer.queue_clip_grad_norm(params.grads, 1, 2, nullptr, on);
  capture.begin();
  expect_refusal([&] { optimizer.step(params.grads, clipping); }, "not recorded in a graph");
  const std::shared_ptr<QueuedClip> recorded = optimizer.queue_clip_grad_norm(params.grads, 1, 2, nullptr, on);
  expect_refusal([&] { Optimizer::clipped(*recorded); }, "wanted a replay");
  StepOptions clips = on;
  clips.clip = recorded;
  optimizer.step(params.grads, clips);  // the capture goes on
  const Graph graph(capture.stream);
  expect_refusal([&] { optimizer.prepare_replay(clipping); }, "clip");
  StepOptions scaled = on;
  scaled.grad_scale = 2;
  expect_refusal([&] { optimizer.prepare_replay(scaled); }, "grad_scale=2");
  expect_refusal([&] { optimizer.step(params.grads, clips); }, "recorded in a graph");
  clipping.clip.reset();
  optimizer.synchronize();
}

// A search leaves open whether its step is taken, and so the number of the next: that is waited for. Without one, the
// device runs the last replay while the host prepares the next.
TEST_F(CudaResident, PreparingAReplayDoesNotWaitForTheLast) {
  constexpr int kSeeds = 10, kReplays = 6;
  for (const NonFinite nonfinite : {NonFinite::kPropagate, NonFinite::kSkip}) {
    int late = 0;
    for (uint64_t seed = 1; seed <= kSeeds; ++seed) {
      restart({.seed = seed});
      const Capturing capture;
      Optimizer optimizer(resident(nonfinite));
      Parameters params(optimizer, 10);
      optimizer.step(params.grads, capture.on);
      optimizer.synchronize();
      capture.begin();
      optimizer.step(params.grads, capture.on);
      const Graph graph(capture.stream);
      int64_t launched = cuda_emulator::counters().launches;
      for (int i = 0; i < kReplays; ++i) {
        optimizer.prepare_replay(capture.on);
        const int64_t run = cuda_emulator::counters().launches;
        late += i > 0 && run == launched;  // nothing since the last replay was launched
        ASSERT_EQ(cudaGraphLaunch(graph.executable, capture.stream), cudaSuccess);
        launched = run;
      }
      EXPECT_EQ(optimizer.report().steps, kReplays + 1);
      optimizer.synchronize();
    }
    const int calls = kSeeds * (kReplays - 1);
    if (nonfinite == NonFinite::kPropagate) {
      EXPECT_GT(late, calls / 4);
    } else {
      EXPECT_EQ(late, 0);
    }
    std::printf("%s: the last replay had not run in %d of %d calls that prepared the next\n",
                nonfinite == NonFinite::kPropagate ? "propagate" : "skip", late, calls);
  }
}

}  // namespace
}  // namespace lowtide::cuda_host
