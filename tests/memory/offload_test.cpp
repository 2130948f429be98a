// Claims: offload() returns the RAM of state to the system, and every call that needs the state finds the same bits; a
// disk that fails leaves the state where it was, and damage is detected.
#include <unistd.h>

#include "core/buffer.h"
#include "memory/offloaded.h"
#include "support/faulty_env.h"
#include "support/optimizer_case.h"
#include "support/test.h"

namespace lowtide::testing {
namespace {

constexpr int64_t kRows = 2048, kColumns = 1024;

// Returns the bytes of this process that are in RAM and belong to no file.
int64_t anonymous_bytes() {
  std::ifstream statm("/proc/self/statm");
  int64_t size = 0, resident = 0, shared = 0;
  statm >> size >> resident >> shared;
  return (resident - shared) * ::sysconf(_SC_PAGESIZE);
}

struct Trained {
  Tensor param{DType::kF32, {kRows, kColumns}}, grad{DType::kF32, {kRows, kColumns}};
  Optimizer optimizer;

  explicit Trained(const Config& config) : optimizer(make_optimizer(config)) {
    Rng rng(7);
    param.randomize(rng);
    grad.randomize(rng, 1e-2);
    optimizer.add_param(0, param.view());
  }
  void step(int count) {
    for (int i = 0; i < count; ++i) take_step(optimizer, grad);
  }
  std::vector<std::byte> bytes() const { return snapshot(optimizer, {&param}); }
};

constexpr int64_t kState = kRows * kColumns * 8;
constexpr int64_t kBudgets[] = {2 * kState, kState / 2, int64_t{1} << 20};

Config with(int64_t budget, const TemporaryDirectory& directory) {
  Config config{.state = "fp32", .memory = {budget, directory.path(), -1, 0}};
  return config;
}

TEST(Offload, GivesTheRamBack) {
  const TemporaryDirectory directory;
  for (const int64_t budget : kBudgets) {
    Trained other(with(budget, directory));
    other.step(3);
    const MemoryReport before = other.optimizer.report();
    const int64_t used = anonymous_bytes();
    other.optimizer.offload();
    const int64_t freed = used - anonymous_bytes();
    const MemoryReport away = other.optimizer.report();
    EXPECT_EQ(away.allocated_bytes, 0);
    // The process's other memory may change by a few pages.
    EXPECT_GE(freed, before.allocated_bytes - (1 << 20));
    other.optimizer.offload();  // again, with nothing to do
    figure("budget {}: {} bytes of RAM, {} given back, {} put on disk", budget, before.allocated_bytes, freed,
           away.offloaded_bytes);
  }
}

TEST(Offload, ChangesNothing) {
  const TemporaryDirectory directory;
  for (const int64_t budget : kBudgets) {
    Config config = with(budget, directory);
    Trained other(config);
    config.memory = {};
    Trained ram(config);
    ram.step(3), other.step(3);
    const MemoryReport before = other.optimizer.report();
    other.optimizer.offload();
    EXPECT_GT(other.optimizer.report().offloaded_bytes, 0) << "control";
    ram.step(2), other.step(2);  // brings it back
    EXPECT_EQ(other.optimizer.report().offloaded_bytes, 0);
    EXPECT_EQ(other.optimizer.report().disk_bytes, before.disk_bytes);
    EXPECT_EQ(ram.bytes(), other.bytes());
    other.optimizer.offload();
    EXPECT_EQ(ram.bytes(), other.bytes());  // read_state brings it back
    other.optimizer.offload();
    other.optimizer.save(directory.file("checkpoint"));
    other.optimizer.offload();
    other.optimizer.load(directory.file("checkpoint"));
    EXPECT_EQ(ram.bytes(), other.bytes());
    other.optimizer.offload();
    Tensor late(DType::kF32, {100});
    other.optimizer.add_param(0, late.view());
    other.optimizer.onload();
    EXPECT_EQ(ram.bytes().size(), static_cast<size_t>(kRows * kColumns * 12 + 8));
    EXPECT_TRUE(directory.names() == std::vector<std::string>{"checkpoint"});
  }
}

TEST(Offload, NeedsADiskWithRoom) {
  const TemporaryDirectory directory;
  const auto attempt = [](const Memory& memory) {
    Config config{.memory = memory};
    Trained trained(config);
    trained.step(1);
    const auto before = trained.bytes();
    const std::string message = refusal([&] { trained.optimizer.offload(); });
    EXPECT_EQ(before, trained.bytes());
    figure("refused: {}", message);
  };
  attempt({});
  attempt({int64_t{1} << 30, directory.path(), 1 << 20, 0});
}

// Flips one bit of everything that is read.
class FlippingEnv : public Env {
 public:
  bool allows_io_uring() const override { return false; }
  int64_t pread(int fd, void* to, int64_t bytes, int64_t offset) override {
    const int64_t got = Env::pread(fd, to, bytes, offset);
    if (flip && got > 0) *static_cast<unsigned char*>(to) ^= 1;
    return got;
  }
  bool flip = false;
};

Buffer filled(size_t bytes, unsigned char value) {
  Buffer buffer(system_env(), bytes);
  std::memset(buffer.data(), value, bytes);
  return buffer;
}

bool holds(const Buffer& buffer, unsigned char value) {
  return buffer.data()[0] == std::byte{value} && std::memcmp(buffer.data(), buffer.data() + 1, buffer.bytes() - 1) == 0;
}

TEST(Offload, AFailingDiskLosesNothing) {
  const TemporaryDirectory directory;
  const Buffer a = filled(36 << 20, 3), b = filled(4096, 5);
  int64_t points = 0, refused = 0, wrong = 0;
  for (const Call call : {Call::kOpen, Call::kAllocate, Call::kPwrite, Call::kPread})
    for (int64_t n = 1; n < 1000; ++n) {
      FaultyEnv env;
      env.arm({.call = call, .nth = n, .error = ENOSPC});
      bool threw = false;
      try {
        OffloadedMemory offloaded(env, directory.path(), {&a, &b}, 1);
        EXPECT_TRUE(holds(b, 0)) << "control: its pages are gone";
        try {
          offloaded.bring_back(1);
        } catch (const Error&) {
          threw = true;
          offloaded.bring_back(1);
        }
      } catch (const Error&) {
        threw = true;
      }
      if (!env.struck()) break;
      ++points, refused += threw;
      wrong += !holds(a, 3) || !holds(b, 5);
      EXPECT_EQ(env.open_fds(), 0);
      if (n == 3 && call != Call::kOpen) n = 34;  // the requests in between are alike
    }
  EXPECT_GT(refused, 10);
  EXPECT_EQ(wrong, 0);
  FlippingEnv flipping;
  OffloadedMemory offloaded(flipping, directory.path(), {&a, &b}, 2);
  flipping.flip = true;
  const std::string message = refusal([&] { offloaded.bring_back(2); }, ErrorKind::kIo);
  flipping.flip = false;
  offloaded.bring_back(2);
  EXPECT_TRUE(holds(a, 3) && holds(b, 5));
  figure("{} points, {} refused, {} wrong; a flipped bit: {}", points, refused, wrong, message);
}

}  // namespace
}  // namespace lowtide::testing
