// A lost device in the C interface, through the plug-in as programs find it. Devices that are not lost: tests/sycl.
#include <gtest/gtest.h>
#include <unistd.h>

#include "host_support.h"
#include "lowtide/lowtide_device.h"

namespace lowtide::cuda_host {
namespace {

class CudaCapi : public ThroughPlugin {};

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
