// Claims: a program that has only the C interface gets memory and a queue of a device, and steps there with the bits of
// the CPU; what is asked for wrongly is refused, and closing frees.
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

#include "lowtide/lowtide_device.h"
#include "support/random.h"
#include "support/test.h"
#include "sycl_support.h"

namespace lowtide::testing {
namespace {

struct Opened {
  lt_device* device = nullptr;
  void* queue = nullptr;
  Opened() {
    EXPECT_EQ(lt_device_open("sycl", "cpu", nullptr, &device), LT_OK) << lt_last_error();
    EXPECT_EQ(lt_device_queue(device, &queue), LT_OK);
  }
  ~Opened() { lt_device_close(device); }
  Opened(const Opened&) = delete;

  void* copy_of(const std::vector<float>& from, int kind) {
    void* to = nullptr;
    const auto bytes = static_cast<int64_t>(from.size() * sizeof(float));
    EXPECT_EQ(lt_device_alloc(device, kind, bytes, &to), LT_OK) << lt_last_error();
    EXPECT_EQ(lt_device_copy(device, nullptr, to, from.data(), bytes), LT_OK) << lt_last_error();
    EXPECT_EQ(lt_device_synchronize(device, nullptr), LT_OK);
    return to;
  }
  std::vector<float> values(const void* from, size_t count) {
    std::vector<float> to(count);
    EXPECT_EQ(lt_device_copy(device, queue, to.data(), from, static_cast<int64_t>(count * sizeof(float))), LT_OK);
    EXPECT_EQ(lt_device_synchronize(device, queue), LT_OK);
    return to;
  }
};

struct Handle {
  lt_optimizer* optimizer = nullptr;
  Handle(const char* state, const lt_optimizer_options& options) {
    lt_group_options group = LT_GROUP_OPTIONS_INIT;
    group.state = state;
    EXPECT_EQ(lt_optimizer_create(&options, &optimizer), LT_OK) << lt_last_error();
    EXPECT_EQ(lt_optimizer_add_group(optimizer, &group, nullptr), LT_OK);
  }
  ~Handle() { lt_optimizer_destroy(optimizer); }
  Handle(const Handle&) = delete;
};

void refused(lt_status status, lt_status wanted, const char* words) {
  EXPECT_EQ(status, wanted) << lt_last_error();
  EXPECT_NE(std::string(lt_last_error()).find(words), std::string::npos) << words << " not in: " << lt_last_error();
}

TEST(SyclCApi, StepsOnADeviceWithTheBitsOfTheCpu) {
  LT_NEEDS_DEVICE();
  Rng rng = seeded("the C interface on a SYCL device", 11);
  const int64_t sizes[2] = {37, 555};
  const size_t count = 37 * 555;
  const TemporaryDirectory directory;
  int64_t cases = 0, differing = 0, streamed = 0, on_disk = 0, managed = 0;
  for (const int kind : {LT_MEMORY_DEVICE, LT_MEMORY_SHARED})
    for (const char* state : {"fp32", "bf16", "dynamic8"})
      for (const int budget : {0, 1, 2, 3}) {
        std::vector<float> param(count), grad(count);
        for (float& value : param) value = static_cast<float>(rng.between(-1000, 1000)) / 256;
        Opened opened;
        void* const there = opened.copy_of(param, kind);
        void* const grad_there = opened.copy_of(param, kind);
        lt_memory_options memory = LT_MEMORY_OPTIONS_INIT;
        memory.chunk = 4096;
        if (budget == 1 || budget == 3) memory.device = 5 * 4096;
        if (budget == 3) memory.host = 3 * 4096, memory.disk = directory.path().c_str();
        memory.managed = budget == 2;
        lt_optimizer_options options = LT_OPTIMIZER_OPTIONS_INIT;
        Handle host(state, options);
        options.backend = "sycl";
        options.stream = opened.queue;
        options.memory = &memory;
        Handle device(state, options);
        const lt_tensor here_tensor = {param.data(), LT_F32, 2, sizes, nullptr};
        const lt_tensor there_tensor = {there, LT_F32, 2, sizes, nullptr};
        ASSERT_EQ(lt_optimizer_add_param(host.optimizer, 0, &here_tensor, nullptr), LT_OK);
        ASSERT_EQ(lt_optimizer_add_param(device.optimizer, 0, &there_tensor, nullptr), LT_OK);
        for (int step = 0; step < 3; ++step) {
          for (float& value : grad) value = static_cast<float>(rng.between(-1000, 1000)) / 4096;
          ASSERT_EQ(lt_device_copy(opened.device, opened.queue, grad_there, grad.data(), count * sizeof(float)), LT_OK);
          const lt_gradient here_gradient = {grad.data(), LT_F32, nullptr};
          const lt_gradient there_gradient = {grad_there, LT_F32, nullptr};
          ASSERT_EQ(lt_optimizer_step(host.optimizer, &here_gradient, 1, nullptr, nullptr), LT_OK);
          lt_step_options on_queue = LT_STEP_OPTIONS_INIT;
          on_queue.stream = opened.queue;
          ASSERT_EQ(lt_optimizer_step(device.optimizer, &there_gradient, 1, &on_queue, nullptr), LT_OK)
              << lt_last_error();
          ASSERT_EQ(lt_device_synchronize(opened.device, opened.queue), LT_OK);
        }
        const std::vector<float> got = opened.values(there, count);
        differing += std::memcmp(got.data(), param.data(), count * sizeof(float)) != 0;
        lt_state_view view;
        ASSERT_EQ(lt_optimizer_state(device.optimizer, 0, 0, &view), LT_OK);
        EXPECT_EQ(view.codes, nullptr);
        std::vector<float> mine(count), theirs(count);
        for (int k = 0; k < 2; ++k) {
          ASSERT_EQ(lt_optimizer_export_state(host.optimizer, 0, k, mine.data()), LT_OK);
          ASSERT_EQ(lt_optimizer_export_state(device.optimizer, 0, k, theirs.data()), LT_OK);
          differing += mine != theirs;
        }
        lt_memory_report report = LT_MEMORY_REPORT_INIT;
        ASSERT_EQ(lt_optimizer_report(device.optimizer, &report), LT_OK);
        EXPECT_GT(report.device_bytes + report.managed_bytes, 0);
        if (memory.device >= 0) {
          EXPECT_LE(report.device_bytes, memory.device);
        }
        on_disk += report.disk_bytes > 0 && report.disk_read_bytes == report.disk_written_bytes;
        streamed += report.moved_per_step > 0;
        managed += report.managed_bytes > 0;
        ++cases;
      }
  EXPECT_EQ(differing, 0);
  EXPECT_EQ(managed, cases / 4);
  EXPECT_EQ(streamed, cases / 2);
  EXPECT_EQ(on_disk, cases / 4);
  std::printf("%lld cases (%lld streaming, %lld from a disk, %lld managed): parameters and states that differ: %lld\n",
              static_cast<long long>(cases), static_cast<long long>(streamed), static_cast<long long>(on_disk),
              static_cast<long long>(managed), static_cast<long long>(differing));
}

TEST(SyclCApi, RefusesWhatCannotBe) {
  LT_NEEDS_DEVICE();
  Opened opened;
  void* memory = &opened;
  refused(lt_device_alloc(opened.device, LT_MEMORY_SHARED, 0, &memory), LT_INVALID_ARGUMENT, "bytes=0");
  EXPECT_EQ(memory, nullptr);
  refused(lt_device_alloc(opened.device, 3, 64, &memory), LT_INVALID_ARGUMENT, "kind=3");
  refused(lt_device_alloc(opened.device, LT_MEMORY_DEVICE, int64_t{1} << 50, &memory), LT_OUT_OF_MEMORY, "bytes");
  refused(lt_device_free(opened.device, &memory), LT_INVALID_ARGUMENT, "allocated");
  refused(lt_device_copy(opened.device, nullptr, &memory, &memory, -1), LT_INVALID_ARGUMENT, "bytes=-1");
  refused(lt_device_copy(opened.device, nullptr, nullptr, &memory, 1), LT_INVALID_ARGUMENT, "to");
  ASSERT_EQ(lt_device_alloc(opened.device, LT_MEMORY_PINNED, 64, &memory), LT_OK);
  EXPECT_EQ(lt_device_free(opened.device, memory), LT_OK);
  refused(lt_device_free(opened.device, memory), LT_INVALID_ARGUMENT, "allocated");
  EXPECT_EQ(lt_device_free(opened.device, nullptr), LT_OK);
  lt_device_limits_report limits = LT_DEVICE_LIMITS_REPORT_INIT;
  ASSERT_EQ(lt_device_limits(opened.device, &limits), LT_OK);
  EXPECT_GT(limits.total_bytes, 0);
  EXPECT_GT(limits.largest_allocation, 0);

  lt_memory_options budget = LT_MEMORY_OPTIONS_INIT;
  budget.managed = 2;
  lt_optimizer_options options = LT_OPTIMIZER_OPTIONS_INIT;
  options.memory = &budget;
  lt_optimizer* optimizer = nullptr;
  refused(lt_optimizer_create(&options, &optimizer), LT_INVALID_ARGUMENT, "managed=2");
  budget.managed = 1;
  refused(lt_optimizer_create(&options, &optimizer), LT_INVALID_ARGUMENT, "managed");  // for the host's memory
  options.backend = "sycl";
  options.device = "gpu";
  options.stream = opened.queue;  // a CPU's
  refused(lt_optimizer_create(&options, &optimizer), LT_INVALID_ARGUMENT, "gpu");
  std::printf("refused: 11 calls\n");
}

// A caller whose lowtide.h ended before the fields of devices.
TEST(SyclCApi, OlderOptionsMeanTheCpu) {
  lt_optimizer_options options = LT_OPTIMIZER_OPTIONS_INIT;
  options.backend = "tpu";
  lt_optimizer* optimizer = nullptr;
  EXPECT_EQ(lt_optimizer_create(&options, &optimizer), LT_INVALID_ARGUMENT);
  options.struct_size = static_cast<int64_t>(offsetof(lt_optimizer_options, backend));
  EXPECT_EQ(lt_optimizer_create(&options, &optimizer), LT_OK);
  lt_optimizer_destroy(optimizer);
}

TEST(SyclCApi, ClosingFrees) {
  LT_NEEDS_DEVICE();
  const auto resident = [] {
    long pages = 0, unused = 0;
    std::FILE* file = std::fopen("/proc/self/statm", "r");
    EXPECT_EQ(std::fscanf(file, "%ld %ld", &unused, &pages), 2);
    std::fclose(file);
    return int64_t{pages} * 4096;
  };
  constexpr int64_t kBytes = int64_t{64} << 20;
  int64_t least = INT64_MAX, most = 0;
  for (int round = 0; round < 12; ++round) {
    Opened opened;
    for (const int kind : {LT_MEMORY_DEVICE, LT_MEMORY_PINNED, LT_MEMORY_SHARED}) {
      void* memory = nullptr;
      ASSERT_EQ(lt_device_alloc(opened.device, kind, kBytes / 4, &memory), LT_OK);
      const std::vector<char> ones(kBytes / 4, 1);
      ASSERT_EQ(lt_device_copy(opened.device, nullptr, memory, ones.data(), kBytes / 4), LT_OK);
      ASSERT_EQ(lt_device_synchronize(opened.device, nullptr), LT_OK);
    }
    if (round < 2) continue;
    least = std::min(least, resident());
    most = std::max(most, resident());
  }
  EXPECT_LT(most - least, kBytes);  // 10 rounds that kept theirs would add 7.5 times as much
  std::printf("resident memory over 10 rounds of 48 MiB: grew by %lld KiB at most\n",
              static_cast<long long>((most - least) / 1024));
}

}  // namespace
}  // namespace lowtide::testing
