// Steps in graphs. Graphs are captured on a stream of their own and replayed on any: also on the legacy default stream,
// whose handle is null. CUDA, Runtime API, "Stream synchronization behavior": work there is behind all that blocking
// streams have, and before what they get next; streams made with cudaStreamNonBlocking take no part in that. CUDA,
// cudaStreamBeginCapture: the legacy stream cannot be captured.
#include <limits>

#include "backend/cuda/device/launch.h"
#include "host_support.h"

namespace lowtide::cuda_host {
namespace {

class CudaReplays : public Emulated {};

// Where graphs are captured, and where they are replayed.
struct Streams {
  cudaStream_t captured, replayed;
};
// Replays on the stream that was captured, and on the legacy default stream.
std::vector<Streams> all_streams(Backend& backend) {
  const cudaStream_t own = own_stream(backend);
  return {{own, own}, {own, nullptr}};
}

// A replay does the step that was prepared for it, with its own arguments; one that nothing was prepared for does
// nothing, and is counted.
TEST_F(CudaReplays, TakeTheStepThatWasPrepared) {
  for (uint64_t seed = 1; seed <= 10; ++seed)
    for (const cudaStreamCaptureMode mode : {cudaStreamCaptureModeGlobal, cudaStreamCaptureModeRelaxed})
      for (const bool on_null : {false, true}) {
        restart({.seed = seed});
        auto backend = make_backend("", nullptr);
        const Streams on = all_streams(*backend)[on_null];
        const cudaStream_t capturing = on.captured, stream = on.replayed;
        Model model(*backend, {10, 300, 40}, stream);
        refusal([&] { backend->record_step(model.items(), false, capturing); });
        ASSERT_EQ(cudaStreamBeginCapture(capturing, mode), cudaSuccess);
        EXPECT_TRUE(backend->device()->is_capturing(capturing));
        const std::shared_ptr<RecordedStep> recorded = backend->record_step(model.items(), false, capturing);
        expect_words(refusal([&] { backend->step(model.items(), 1, false, capturing); }), {"captured", "replays"});
        refusal([&] { recorded->prepare(model.items(), capturing); });
        expect_words(refusal([&] { make_backend("", capturing); }), {"captured", "exact:0"});
        const Graph graph(capturing);
        EXPECT_FALSE(backend->device()->is_capturing(capturing));
        EXPECT_EQ(model.steps(), (std::vector<int>{0, 0, 0}));
        EXPECT_TRUE(recorded->all_prepared());
        EXPECT_TRUE(recorded->was_replayed());
        for (int replay = 1; replay <= 5; ++replay) {
          recorded->prepare(model.items(static_cast<float>(replay)), stream);
          EXPECT_FALSE(recorded->was_replayed());
          ASSERT_EQ(cudaGraphLaunch(graph.executable, stream), cudaSuccess);
          EXPECT_TRUE(recorded->was_replayed());
        }
        EXPECT_TRUE(recorded->all_prepared());
        EXPECT_EQ(model.steps(), std::vector<int>(3, 1 + 2 + 3 + 4 + 5));
        backend->step(model.items(), 1, false, stream);  // in between, as ever
        ASSERT_EQ(cudaGraphLaunch(graph.executable, stream), cudaSuccess);
        EXPECT_FALSE(recorded->all_prepared());
        EXPECT_EQ(model.steps(), std::vector<int>(3, 16));
        recorded->prepare(model.items(), stream);
        ASSERT_EQ(cudaGraphLaunch(graph.executable, stream), cudaSuccess);
        EXPECT_EQ(model.steps(), std::vector<int>(3, 17));
        EXPECT_TRUE(recorded->all_prepared()) << "told once";

        Model other(*backend, {10, 301, 40}, stream);
        expect_words(refusal([&] { recorded->prepare(std::span(other.items()).first(2), stream); }),
                     {"2 parameters", "record the step again"});
      }
}

// More tiles than there are warps: each replay counts those that warps take after their first.
TEST_F(CudaReplays, StepEveryTileEachTime) {
  restart({.processors = 1});
  auto backend = make_backend("", nullptr);
  const cudaStream_t stream = own_stream(*backend);
  constexpr int64_t kMostWarps = 64;  // of a processor
  Model model(*backend, {300, kBlockElements * cuda_kernels::kTileBlocks * (kMostWarps + 20)}, stream);
  ASSERT_EQ(cudaStreamBeginCapture(stream, cudaStreamCaptureModeRelaxed), cudaSuccess);
  const std::shared_ptr<RecordedStep> recorded = backend->record_step(model.items(), false, stream);
  const Graph graph(stream);
  for (int replay = 1; replay <= 3; ++replay) {
    recorded->prepare(model.items(), stream);
    ASSERT_EQ(cudaGraphLaunch(graph.executable, stream), cudaSuccess);
    backend->step(model.items(), 1, false, stream);
    EXPECT_EQ(model.steps(), std::vector<int>(2, 2 * replay));
  }
}

// A captured step of three parameters, and its replays.
class Recorded {
 public:
  Recorded(Backend& backend, const Streams& on)
      : on(on),
        model(backend, {10, 300, 40}, on.replayed),
        step_((begin(), backend.record_step(items(), false, on.captured))),
        graph_(on.captured) {}

  void prepare() { step_->prepare(items(), on.replayed); }
  void replay() { EXPECT_EQ(cudaGraphLaunch(graph_.executable, on.replayed), cudaSuccess); }
  std::vector<StepItem>& items() { return model.items(); }

  const Streams on;
  Model model;

 private:
  void begin() { EXPECT_EQ(cudaStreamBeginCapture(on.captured, cudaStreamCaptureModeGlobal), cudaSuccess); }

  std::shared_ptr<RecordedStep> step_;
  Graph graph_;
};

// Preparing waits for the replay before the last one, and for no more: the device runs a replay while the host prepares
// the next. The emulated streams run late, and now and then earlier.
TEST_F(CudaReplays, AreOneAheadOfTheDevice) {
  constexpr int kReplays = 8;
  int late = 0, prepared = 0;
  for (uint64_t seed = 1; seed <= 20; ++seed)
    for (const bool on_null : {false, true}) {
      restart({.seed = seed});
      auto backend = make_backend("", nullptr);
      Recorded recorded(*backend, all_streams(*backend)[on_null]);
      recorded.prepare(), recorded.replay();
      cuda_emulator::run_all();
      const auto launches = [] { return cuda_emulator::counters().launches; };
      const int64_t before = launches();
      recorded.prepare(), recorded.replay();
      cuda_emulator::run_all();
      const int64_t of_one = launches() - before, start = launches();
      for (int i = 0; i < kReplays; ++i, ++prepared) {
        recorded.prepare();  // replays that have been launched: i
        const int64_t run = (launches() - start) / of_one;
        EXPECT_GE(run, i - 1);
        late += run < i;
        recorded.replay();
      }
      EXPECT_EQ(recorded.model.steps(), std::vector<int>(3, kReplays + 2));
    }
  EXPECT_GT(late, prepared / 4);
  std::printf("the last replay had not run in %d of %d calls that prepared the next\n", late, prepared);
}

// Misuse is told as soon as it is known: at once where the device has nothing to do, else by a later call.
TEST_F(CudaReplays, MisuseIsToldOnce) {
  int at_once = 0, later = 0;
  for (uint64_t seed = 1; seed <= 20; ++seed)
    for (const bool on_null : {false, true}) {
      restart({.seed = seed});
      auto backend = make_backend("", nullptr);
      Recorded recorded(*backend, all_streams(*backend)[on_null]);
      const auto other_work = [&] { recorded.model.fill_gradient(0, 1); };
      // The call that says so, counted from the first after the mistake; 0: none did.
      const auto told = [&](const char* words) {
        int by = 0;
        for (int call = 1; call <= 5; ++call) {
          try {
            recorded.prepare();
          } catch (const Error& error) {
            EXPECT_EQ(error.kind(), ErrorKind::kInvalidArgument);
            EXPECT_EQ(by, 0) << "told again";
            expect_words(error.what(), {words});
            by = call;
            if (call == 1 && std::string(words) == "before that replay") recorded.replay();
            continue;
          }
          recorded.replay(), other_work();
        }
        ++(by == 1 ? at_once : later);
        EXPECT_GE(by, 1) << words;
        EXPECT_LE(by, 3) << words;
      };
      recorded.prepare();
      told("before that replay");  // prepared twice, with nothing between
      cuda_emulator::run_all();
      recorded.prepare(), other_work();
      told("before that replay");
      cuda_emulator::run_all();
      recorded.replay();
      told("without prepare_replay");
      cuda_emulator::run_all();
      recorded.replay(), cuda_emulator::run_all();
      told("without prepare_replay");
    }
  EXPECT_GE(at_once, 2 * 40);
  std::printf("told at once: %d, by a later call: %d\n", at_once, later);
}

// The search is in the graph: a replay whose gradients are not finite, with the scale of its step, changes nothing.
TEST_F(CudaReplays, SearchTheirOwnGradients) {
  auto backend = make_backend("", nullptr);
  for (const Streams& on : all_streams(*backend)) {
    const cudaStream_t capturing = on.captured, stream = on.replayed;
    Model model(*backend, {10, 300, 40}, stream);
    const auto late = backend->queue_guard(model.items(), stream);
    ASSERT_EQ(cudaStreamBeginCapture(capturing, cudaStreamCaptureModeGlobal), cudaSuccess);
    refusal([&] { backend->record_step(model.items(1, late.get()), false, capturing); });
    const std::shared_ptr<Guard> guard = backend->queue_guard(model.items(), capturing);
    const auto recorded = backend->record_step(model.items(1, guard.get()), false, capturing);
    const Graph graph(capturing);
    EXPECT_EQ(guard->first(), -1);
    const auto replay = [&](float scale) {
      recorded->prepare(model.items(scale, guard.get()), stream);
      EXPECT_EQ(cudaGraphLaunch(graph.executable, stream), cudaSuccess);
      return guard->first();
    };
    EXPECT_EQ(replay(1), -1);
    // The graph is one chain: a fill, the search, the step and the end of the replay, and then the answer's copy.
    const std::vector<std::string> ran = cuda_emulator::operations();
    ASSERT_GT(ran.size(), 5u);
    EXPECT_EQ(ran.end()[-6], "a graph of 5 nodes");
    EXPECT_EQ(ran.back(), "a copy of 4 bytes");
    EXPECT_EQ(replay(2), -1);
    model.fill_gradient(1, std::numeric_limits<float>::quiet_NaN());
    EXPECT_EQ(replay(1), 1);
    model.fill_gradient(1, 2);
    EXPECT_EQ(replay(1), -1);
    EXPECT_EQ(model.steps(), std::vector<int>(3, 4));
    model.fill_gradient(2, 0x1p61f);  // below the limit by itself, not if it is scaled
    EXPECT_EQ(replay(4), 2);
    model.fill_gradient(2, 3);
    EXPECT_EQ(replay(1), -1);
    EXPECT_EQ(model.steps(), std::vector<int>(3, 5));
    EXPECT_TRUE(recorded->all_prepared());
  }
}

}  // namespace
}  // namespace lowtide::cuda_host
