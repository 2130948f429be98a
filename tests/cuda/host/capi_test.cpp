// Devices of the C interface on the CUDA backend, through the plug-in as programs find it.
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstring>
#include <string>
#include <vector>

#include "host_support.h"
#include "lowtide/lowtide_device.h"

namespace lowtide::cuda_host {
namespace {

class CudaCapi : public ThroughPlugin {};

TEST_F(CudaCapi, MemoryQueuesAndCopies) {
  lt_device* device = nullptr;
  ASSERT_EQ(lt_device_open("cuda", nullptr, nullptr, &device), LT_OK) << lt_last_error();
  void* queue = nullptr;
  ASSERT_EQ(lt_device_queue(device, &queue), LT_OK);
  EXPECT_NE(queue, nullptr);
  lt_device_limits_report limits = LT_DEVICE_LIMITS_REPORT_INIT;
  ASSERT_EQ(lt_device_limits(device, &limits), LT_OK);
  EXPECT_EQ(limits.total_bytes, int64_t{1} << 30);
  constexpr int64_t kBytes = 1 << 20;
  std::vector<unsigned char> from(kBytes), back(kBytes);
  for (size_t i = 0; i < from.size(); ++i) from[i] = static_cast<unsigned char>(i * 31 >> 3);
  int64_t compared = 0;
  for (const int32_t kind : {LT_MEMORY_DEVICE, LT_MEMORY_PINNED, LT_MEMORY_SHARED}) {
    void* memory = nullptr;
    ASSERT_EQ(lt_device_alloc(device, kind, kBytes, &memory), LT_OK) << lt_last_error();
    ASSERT_EQ(lt_device_copy(device, nullptr, memory, from.data(), kBytes), LT_OK);
    ASSERT_EQ(lt_device_copy(device, nullptr, back.data(), memory, kBytes), LT_OK);
    ASSERT_EQ(lt_device_synchronize(device, nullptr), LT_OK);
    EXPECT_EQ(from, back);
    std::memset(back.data(), 0, back.size());
    EXPECT_EQ(lt_device_free(device, memory), LT_OK);
    compared += kBytes;
  }
  void* none = nullptr;
  EXPECT_EQ(lt_device_alloc(device, LT_MEMORY_DEVICE, limits.total_bytes + 1, &none), LT_OUT_OF_MEMORY);
  expect_words(lt_last_error(), {"bytes of device memory"});
  lt_device_close(device);
  std::printf("%lld bytes there and back, 0 differ\n", static_cast<long long>(compared));
}

TEST_F(CudaCapi, DevicesThatThereAreNot) {
  lt_device* device = nullptr;
  EXPECT_EQ(lt_device_open("cuda", ":1", nullptr, &device), LT_INVALID_ARGUMENT);
  expect_words(lt_last_error(), {"device 1"});
  EXPECT_EQ(lt_device_open("cuda", "best", nullptr, &device), LT_INVALID_ARGUMENT);
  expect_words(lt_last_error(), {"exact or fast"});
  EXPECT_EQ(device, nullptr);
}

// Lost to C programs, too; and closing what is lost is no error. In a process of its own, which has lost it for good.
TEST_F(CudaCapi, ALostDevice) {
  const auto lose = [] {
    lt_device* device = nullptr;
    EXPECT_EQ(lt_device_open("cuda", "fast", nullptr, &device), LT_OK) << lt_last_error();
    void* memory = nullptr;
    EXPECT_EQ(lt_device_alloc(device, LT_MEMORY_PINNED, 4096, &memory), LT_OK);
    cuda_emulator::lose_device(0, cudaErrorIllegalAddress);
    EXPECT_EQ(lt_device_synchronize(device, nullptr), LT_DEVICE_LOST);
    EXPECT_EQ(lt_device_alloc(device, LT_MEMORY_PINNED, 4096, &memory), LT_DEVICE_LOST);
    expect_words(lt_last_error(), {"was lost"});
    lt_device_close(device);
    _exit(HasFailure() ? 1 : 0);
  };
  GTEST_FLAG_SET(death_test_style, "threadsafe");  // begins anew: a fork of this process has no device
  EXPECT_EXIT(lose(), ::testing::ExitedWithCode(0), "");
}

}  // namespace
}  // namespace lowtide::cuda_host
