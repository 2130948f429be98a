// A call that cannot be captured spoils the capture.
#include <cstdio>
#include <thread>

#include "emulator_support.h"

namespace cuda_emulator {
namespace {

class Captures : public Emulated {
 protected:
  void SetUp() override {
    Emulated::SetUp();
    memory = on_device<uint32_t>(64);
    stream = make_stream(), side = make_stream();
    event = make_event(), joined = make_event();
  }
  void TearDown() override {
    ok(cudaStreamDestroy(stream)), ok(cudaStreamDestroy(side));
    ok(cudaEventDestroy(event)), ok(cudaEventDestroy(joined));
    ok(cudaFree(memory));
    EXPECT_EQ(held().graphs, 0);
    Emulated::TearDown();
  }
  void begin(cudaStreamCaptureMode mode = cudaStreamCaptureModeGlobal) { ok(cudaStreamBeginCapture(stream, mode)); }
  // The error that ending gives; no graph is left.
  cudaError_t end() {
    cudaGraph_t graph = nullptr;
    const cudaError_t error = cudaStreamEndCapture(stream, &graph);
    EXPECT_EQ(graph != nullptr, error == cudaSuccess);
    if (graph) ok(cudaGraphDestroy(graph));
    return error;
  }
  uint32_t* memory = nullptr;
  cudaStream_t stream = nullptr, side = nullptr;
  cudaEvent_t event = nullptr, joined = nullptr;
};

__global__ void add(uint32_t* to, uint32_t value) { *to += value; }

TEST_F(Captures, WhatCannotBeCapturedSpoilsThem) {
  void* more = nullptr;
  cudaStreamCaptureStatus status{};
  int64_t cases = 0;
  const auto spoils = [&](cudaError_t wanted, cudaError_t at_end, auto&& act) {
    begin();
    ok(launch(stream, 1, 1, add, memory, 1u));
    EXPECT_EQ(act(), wanted);
    ok(cudaStreamIsCapturing(stream, &status));
    EXPECT_EQ(status == cudaStreamCaptureStatusInvalidated, at_end == cudaErrorStreamCaptureInvalidated);
    EXPECT_EQ(end(), at_end);
    ok(cudaStreamIsCapturing(stream, &status));
    EXPECT_EQ(status, cudaStreamCaptureStatusNone);
    ++cases;
  };
  constexpr cudaError_t kUnsupported = cudaErrorStreamCaptureUnsupported, kInvalid = cudaErrorStreamCaptureInvalidated;
  spoils(kUnsupported, kInvalid, [&] { return cudaMalloc(&more, 8); });
  int device = -1;
  spoils(kUnsupported, kInvalid, [&] { return cudaStreamGetDevice(stream, &device); });
  spoils(kUnsupported, kInvalid, [&] {
    auto mode = cudaStreamCaptureModeRelaxed;
    ok(cudaThreadExchangeStreamCaptureMode(&mode));
    const cudaError_t error = cudaStreamGetDevice(stream, &device);
    ok(cudaThreadExchangeStreamCaptureMode(&mode));
    return error;
  });
  spoils(kUnsupported, kInvalid, [&] { return cudaStreamSynchronize(stream); });
  spoils(kUnsupported, kInvalid, [&] { return cudaStreamSynchronize(side); });
  spoils(kUnsupported, kInvalid, [&] { return cudaEventQuery(joined); });
  uint32_t host = 0;
  spoils(kUnsupported, kInvalid, [&] { return cudaMemcpyAsync(memory, &host, 4, cudaMemcpyDefault, stream); });
  ok(cudaEventRecord(joined, side));
  spoils(cudaErrorStreamCaptureIsolation, kInvalid, [&] { return cudaStreamWaitEvent(stream, joined); });
  spoils(cudaSuccess, cudaErrorStreamCaptureUnjoined, [&] {
    ok(cudaEventRecord(event, stream));
    ok(cudaStreamWaitEvent(side, event));
    return launch(side, 1, 1, add, memory, 1u);
  });
  // Where the thread or the capture allows it, nothing is spoilt.
  spoils(cudaSuccess, cudaSuccess, [&] {
    auto mode = cudaStreamCaptureModeRelaxed;
    ok(cudaThreadExchangeStreamCaptureMode(&mode));
    const cudaError_t error = cudaMalloc(&more, 8);
    ok(cudaThreadExchangeStreamCaptureMode(&mode));
    return error;
  });
  ok(cudaFree(more));
  begin(cudaStreamCaptureModeThreadLocal);
  std::thread([&] { ok(cudaMalloc(&more, 8)); }).join();
  EXPECT_EQ(end(), cudaSuccess);
  ok(cudaFree(more));
  begin(cudaStreamCaptureModeGlobal);
  std::thread([&] { EXPECT_EQ(cudaMalloc(&more, 8), kUnsupported); }).join();
  EXPECT_EQ(end(), kInvalid);
  EXPECT_EQ(cudaStreamBeginCapture(nullptr, cudaStreamCaptureModeGlobal), kUnsupported);
  // The legacy stream would wait for a blocking one that is captured.
  const cudaStream_t blocking = make_stream(cudaStreamDefault);
  ok(cudaStreamBeginCapture(blocking, cudaStreamCaptureModeRelaxed));
  EXPECT_EQ(cudaStreamIsCapturing(nullptr, &status), cudaErrorStreamCaptureImplicit);
  EXPECT_EQ(launch(nullptr, 1, 1, add, memory, 1u), cudaErrorStreamCaptureImplicit);
  cudaGraph_t graph = nullptr;
  EXPECT_EQ(cudaStreamEndCapture(blocking, &graph), kInvalid);
  ok(cudaStreamDestroy(blocking));
  std::printf("%lld cases, and 4 of other threads and streams\n", static_cast<long long>(cases));
}

}  // namespace
}  // namespace cuda_emulator
