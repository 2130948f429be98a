// Steps in graphs. Graphs are captured on a stream of their own and replayed on any: also on the legacy default stream,
// whose handle is null. CUDA, Runtime API, "Stream synchronization behavior": work there is behind all that blocking
// streams have, and before what they get next; streams made with cudaStreamNonBlocking take no part in that. CUDA,
// cudaStreamBeginCapture: the legacy stream cannot be captured.
#include <limits>

#include "host_support.h"

namespace lowtide::cuda_host {
namespace {

class CudaReplays : public Emulated {};

struct Graph {
  explicit Graph(cudaStream_t stream) {
    EXPECT_EQ(cudaStreamEndCapture(stream, &graph), cudaSuccess);
    EXPECT_EQ(cudaGraphInstantiate(&executable, graph, 0), cudaSuccess);
  }
  ~Graph() {
    EXPECT_EQ(cudaGraphExecDestroy(executable), cudaSuccess);
    EXPECT_EQ(cudaGraphDestroy(graph), cudaSuccess);
  }
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t executable = nullptr;
};

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
        cuda_emulator::Settings settings;
        settings.seed = seed;
        restart(settings);
        auto backend = make_backend("", nullptr);
        const auto [capturing, stream] = all_streams(*backend)[on_null];
        Model model(*backend, {10, 300, 40}, stream);
        message_of(ErrorKind::kInvalidArgument, [&] { backend->record_step(model.items(), false, capturing); });
        ASSERT_EQ(cudaStreamBeginCapture(capturing, mode), cudaSuccess);
        EXPECT_TRUE(backend->device()->is_capturing(capturing));
        const std::shared_ptr<RecordedStep> recorded = backend->record_step(model.items(), false, capturing);
        expect_words(
            message_of(ErrorKind::kInvalidArgument, [&] { backend->step(model.items(), 1, false, capturing); }),
            {"captured", "replays"});
        message_of(ErrorKind::kInvalidArgument, [&] { recorded->prepare(model.items(), capturing); });
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
        expect_words(message_of(ErrorKind::kInvalidArgument,
                                [&] { recorded->prepare(std::span(other.items()).first(2), stream); }),
                     {"2 parameters", "record it"});
      }
}

// The search is in the graph: a replay whose gradients are not finite, with the scale of its step, changes nothing.
TEST_F(CudaReplays, SearchTheirOwnGradients) {
  auto backend = make_backend("", nullptr);
  for (const auto& [capturing, stream] : all_streams(*backend)) {
    Model model(*backend, {10, 300, 40}, stream);
    const auto late = backend->queue_guard(model.items(), stream);
    ASSERT_EQ(cudaStreamBeginCapture(capturing, cudaStreamCaptureModeGlobal), cudaSuccess);
    message_of(ErrorKind::kInvalidArgument,
               [&] { backend->record_step(model.items(1, late.get()), false, capturing); });
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
