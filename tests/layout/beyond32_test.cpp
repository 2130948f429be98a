// A parameter of more than 2^32 elements, in RAM and with its state on disk, on a machine of ordinary size: the
// parameter's addresses are 128 views of one window of memory, and a tail of its own.
#include <sys/mman.h>
#include <unistd.h>

#include "support/optimizer_case.h"
#include "support/test.h"

namespace lowtide::testing {
namespace {

constexpr int64_t kBytes = 2, kWindow = int64_t{64} << 20, kWindows = 128, kTail = 4097;
constexpr int64_t kNumel = kWindow / kBytes * kWindows + kTail;
static_assert(kNumel == (int64_t{1} << 32) + 4097);

class Windows {
 public:
  Windows() {
    fd_ = ::memfd_create("window", MFD_CLOEXEC);
    if (fd_ < 0 || ::ftruncate(fd_, kWindow) != 0) return;
    void* const all =
        ::mmap(nullptr, kAllBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (all == MAP_FAILED) return;
    start_ = static_cast<std::byte*>(all);
    for (int64_t i = 0; i < kWindows; ++i)
      if (::mmap(start_ + i * kWindow, kWindow, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd_, 0) == MAP_FAILED)
        ok_ = false;
  }
  ~Windows() {
    if (start_) ::munmap(start_, kAllBytes);
    if (fd_ >= 0) ::close(fd_);
  }
  Windows(const Windows&) = delete;
  Windows& operator=(const Windows&) = delete;

  bool ok() const { return start_ && ok_; }
  uint16_t* elements() const { return reinterpret_cast<uint16_t*>(start_); }

 private:
  static constexpr size_t kAllBytes = kBytes * kNumel;
  int fd_ = -1;
  std::byte* start_ = nullptr;
  bool ok_ = true;
};

// Lion with beta2 = 1/2: m becomes 1 in a first step by g = 2. A second by g = -2 goes on downwards where it finds that
// m (0.9 - 0.2 is positive), and upwards where it finds none. So each view that is stepped twice takes 1 from its
// window.
void two_steps(const Memory& memory, const char* where) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "sanitizers need several times the 4.5 GiB of this test";
#endif
  const Windows windows;
  ASSERT_TRUE(windows.ok());
  Config config{.rule = "lion", .memory = memory};
  config.threads = 1;  // views of one window must not be stepped at once
  config.hyper.lr = 0.5, config.hyper.beta1 = 0.9, config.hyper.beta2 = 0.5;
  Optimizer optimizer = make_optimizer(config);
  optimizer.add_param(0, {windows.elements(), DType::kBF16, {kNumel}, {}});
  const int64_t no_stride = 0;
  for (const double value : {2.0, -2.0}) {
    const uint16_t g = bf16_nearest(value);
    const Gradient gradient{&g, DType::kBF16, &no_stride};
    ASSERT_TRUE(optimizer.step({&gradient, 1}).applied);
  }
  const uint16_t in_window = bf16_nearest(-static_cast<double>(kWindows)), in_tail = bf16_nearest(-1.0);
  const uint16_t* const p = windows.elements();
  int64_t wrong = 0;
  for (int64_t i = 0; i < kWindow / kBytes; ++i) wrong += p[i] != in_window;
  for (int64_t i = kNumel - kTail; i < kNumel; ++i) wrong += p[i] != in_tail;
  EXPECT_EQ(wrong, 0);
  const auto report = optimizer.report();
  EXPECT_EQ(report.state_bytes, kNumel + 4 * ((kNumel + 255) / 256));
  EXPECT_EQ(report.disk_bytes > int64_t{1} << 32, !memory.disk.empty());
  figure("{} elements stepped twice, state in {}: {} wrong, last index updated: {}", kNumel, where, wrong,
         p[kNumel - 1] == in_tail ? "yes" : "no");
}

TEST(LargeTensor, IndicesGoBeyond32BitsInRam) { two_steps({}, "RAM"); }

TEST(LargeTensor, IndicesGoBeyond32BitsOnDisk) {
  const TemporaryDirectory directory;
  const auto free = static_cast<int64_t>(std::filesystem::space(directory.file("")).available);
  if (free < int64_t{6} << 30)
    GTEST_SKIP() << "needs 6 GiB of free disk in " << directory.file("") << ", there are " << free;
  two_steps({.host = int64_t{16} << 20, .disk = directory.file("")}, "a file");
}

}  // namespace
}  // namespace lowtide::testing
