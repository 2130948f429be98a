// Streams are late and in no order but the one that is asked for; copies read when they run, or at once.
#include <cstdio>
#include <set>

#include "emulator_support.h"

namespace cuda_emulator {
namespace {

class Streams : public Emulated {};

__global__ void append(uint32_t* list, uint32_t value) { list[1 + list[0]++] = value; }

// The orders in which one kernel on each of the streams runs, over many seeds.
std::set<std::vector<uint32_t>> orders(const std::vector<cudaStream_t>& streams, uint32_t* list, int rounds) {
  std::set<std::vector<uint32_t>> out;
  const uint32_t zero = 0;
  const auto count = static_cast<uint32_t>(streams.size());
  for (int round = 0; round < rounds; ++round) {
    ok(cudaMemcpyAsync(list, &zero, 4, cudaMemcpyHostToDevice, streams[0]));
    ok(cudaStreamSynchronize(streams[0]));
    for (uint32_t i = 0; i < count; ++i) ok(launch(streams[i], 1, 1, append, list, i));
    run_all();
    const auto got = fetch(list, count + 1, streams[0]);
    EXPECT_EQ(got[0], count);
    out.insert({got.begin() + 1, got.end()});
  }
  return out;
}

TEST_F(Streams, RunInAllOrdersThatAreLegal) {
  uint32_t* list = on_device<uint32_t>(16);
  const cudaStream_t a = make_stream(), b = make_stream(), c = make_stream();
  EXPECT_EQ(orders({a, b, c}, list, 200).size(), 6u);
  EXPECT_EQ(orders({a, a, a}, list, 50).size(), 1u);
  // The legacy stream: in order with blocking streams, and only with these.
  const cudaStream_t blocking = make_stream(cudaStreamDefault);
  EXPECT_EQ(orders({blocking, nullptr, blocking}, list, 50).size(), 1u);
  EXPECT_EQ(orders({blocking, cudaStreamLegacy}, list, 50).size(), 1u);
  EXPECT_EQ(orders({nullptr, a}, list, 100).size(), 2u);
  EXPECT_EQ(orders({blocking, a}, list, 100).size(), 2u);
  for (const cudaStream_t s : {a, b, c, blocking}) ok(cudaStreamDestroy(s));
  EXPECT_EQ(cudaStreamSynchronize(a), cudaErrorInvalidResourceHandle);
  ok(cudaFree(list));
}

// A wait is for what was recorded when it was asked for.
TEST_F(Streams, WaitsTakeTheRecordOfTheirTime) {
  uint32_t* list = on_device<uint32_t>(16);
  const cudaStream_t a = make_stream(), b = make_stream();
  const cudaEvent_t event = make_event();
  std::set<std::vector<uint32_t>> seen;
  const uint32_t zero = 0;
  for (int round = 0; round < 200; ++round) {
    ok(cudaStreamWaitEvent(b, event));  // of the last round, if of any
    ok(cudaMemcpyAsync(list, &zero, 4, cudaMemcpyHostToDevice, a));
    ok(launch(a, 1, 1, append, list, 1u));
    ok(cudaEventRecord(event, a));
    ok(cudaStreamWaitEvent(b, event));
    ok(launch(a, 1, 1, append, list, 2u));
    ok(cudaEventRecord(event, a));
    ok(launch(b, 1, 1, append, list, 3u));
    EXPECT_EQ(held().pending > 0, true);
    run_all();
    const auto got = fetch(list, 4, a);
    seen.insert({got.begin() + 1, got.end()});
  }
  EXPECT_EQ(seen, (std::set<std::vector<uint32_t>>{{1, 2, 3}, {1, 3, 2}}));
  ok(cudaEventDestroy(event)), ok(cudaStreamDestroy(a)), ok(cudaStreamDestroy(b));
  ok(cudaFree(list));
}

TEST_F(Streams, AreAsLateAsTheyMay) {
  uint32_t* memory = on_device<uint32_t>(4);
  const cudaStream_t stream = make_stream();
  const cudaEvent_t event = make_event();
  Pinned<uint32_t> from({1, 2, 3, 4}), to({0, 0, 0, 0});
  ok(cudaMemcpyAsync(memory, from.data(), 16, cudaMemcpyDefault, stream));
  from[0] = 9;  // is read late
  ok(cudaMemcpyAsync(to.data(), memory, 16, cudaMemcpyDefault, stream));
  ok(cudaEventRecord(event, stream));
  EXPECT_EQ(to[0] + to[3], 0u);
  int64_t queries = 1;
  while (cudaEventQuery(event) == cudaErrorNotReady) ++queries;
  EXPECT_EQ(to[0], 9u);
  EXPECT_EQ(to[3], 4u);
  EXPECT_EQ(cudaGetLastError(), queries > 1 ? cudaErrorNotReady : cudaSuccess);
  // Pageable memory is read at once, and written before the call is back.
  std::vector<uint32_t> host{5, 6, 7, 8};
  ok(cudaMemcpyAsync(memory, host.data(), 16, cudaMemcpyDefault, stream));
  host = {0, 0, 0, 0};
  EXPECT_EQ(fetch(memory, 4, stream), (std::vector<uint32_t>{5, 6, 7, 8}));
  EXPECT_EQ(counters().staged, 2);
  // Work that is queued on a destroyed stream still runs.
  ok(cudaMemcpyAsync(to.data(), memory, 16, cudaMemcpyDefault, stream));
  ok(cudaStreamDestroy(stream));
  ok(cudaEventDestroy(event)), ok(cudaFree(memory));
  EXPECT_EQ(to[3], 8u);
  std::printf("seen to have happened after %lld queries\n", static_cast<long long>(queries));
}

TEST_F(Streams, OfOtherDevicesAreRefused) {
  Settings two;
  two.devices = 2;
  reset(two);
  uint32_t* memory = on_device<uint32_t>(4);
  const cudaStream_t here = make_stream();
  const cudaEvent_t event = make_event();
  ok(cudaSetDevice(1));
  const cudaStream_t there = make_stream();
  EXPECT_EQ(launch(here, 1, 1, append, memory, 1u), cudaErrorInvalidResourceHandle);
  EXPECT_EQ(cudaEventRecord(event, there), cudaErrorInvalidResourceHandle);
  ok(cudaEventRecord(event, here));
  ok(cudaStreamWaitEvent(there, event));
  ok(cudaStreamSynchronize(there));
  int device = -1;
  ok(cudaStreamGetDevice(there, &device));
  EXPECT_EQ(device, 1);
  EXPECT_EQ(cudaSetDevice(2), cudaErrorInvalidDevice);
  // Memory of another device is out of a kernel's reach. The child begins anew: a fork of this process has no device.
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_DEATH(
      {
        launch(there, 1, 1, append, memory, 1u);
        run_all();
      },
      "");
  ok(cudaFree(memory));
}

}  // namespace
}  // namespace cuda_emulator
