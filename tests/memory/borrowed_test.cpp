// Claim: device memory that prefetch() has borrowed for a step is given back whether the step is taken, skipped,
// refused, or stopped by a device that cannot search gradients or clear directions; the optimizer works on.
#include "support/fake/fake_backend.h"
#include "support/device_twins.h"
#include "support/test.h"

namespace lowtide::testing {
namespace {

constexpr int64_t kBudget = 12288, kElements = 9000;

enum class End { kTaken, kSkipped, kRefused, kUnsearched, kUncleared };

class Borrower {
 public:
  explicit Borrower(End end) : end_(end) {
    fake::FakeBackendOptions options{.seed = 17, .guards = end == End::kUnsearched};
    auto backend = std::make_unique<fake::FakeBackend>(options);
    fake_ = backend.get();
    lowtide::Memory memory{.chunk = 4096, .device = kBudget};
    optimizer_.emplace(
        OptimizerEnv::make({.rule = "adamw", .threads = 1, .memory = memory}, system_env(), std::move(backend)));
    queue_ = fake_->make_queue();
    GroupOptions group{.hyper = default_hyper("adamw"), .state = "bf16"};
    optimizer_->add_group(group);
    for (DeviceBytes& memory : memory_) {
      memory = DeviceBytes(*fake_, MemoryKind::kDevice, kElements * 4);
      fake_->fill(queue_, memory.data(), 0, 4, kElements);
    }
    for (int param = 0; param < 2; ++param) optimizer_->add_param(0, view(param));
  }

  // Returns true if the step was taken.
  bool step(bool ends_so) {
    std::vector<Gradient> grads{{memory_[2].data()}, {memory_[3].data()}};
    std::vector<float*> directions;
    StepOptions options{.stream = queue_};
    const uint32_t infinity = 0x7f800000;
    fake_->fill(queue_, memory_[2].data(), ends_so && end_ == End::kSkipped ? infinity : 0, 4, 1);
    if (ends_so && end_ == End::kRefused) optimizer_->rebind(1, view(0));
    if (ends_so && end_ == End::kUncleared)
      directions = {reinterpret_cast<float*>(memory_[4].data()), nullptr}, options.directions = directions;
    fake_->host_wait(fake_->record(queue_));
    if (ends_so && (end_ == End::kUnsearched || end_ == End::kUncleared)) fake_->fake().fail_at(1);
    bool taken = false;
    try {
      options.assume_finite = end_ == End::kUncleared;
      taken = optimizer_->step(grads, options).applied;
    } catch (const Error&) {
    }
    fake_->fake().fail_at(0);
    if (end_ == End::kRefused) optimizer_->rebind(1, view(1));
    return taken;
  }

  int64_t borrow(int64_t bytes) { return optimizer_->prefetch(bytes, queue_); }
  int64_t device_bytes() {
    optimizer_->synchronize();
    borrow(0);  // gives back everything that the device has finished with
    return optimizer_->report().device_bytes;
  }

 private:
  TensorView view(int param) { return {memory_[param].data(), DType::kF32, {kElements}, {}}; }

  End end_;
  fake::FakeBackend* fake_;
  std::optional<Optimizer> optimizer_;
  void* queue_;
  DeviceBytes memory_[5];  // two parameters, their gradients, a direction
};

TEST(Borrowed, GoesBackHoweverTheStepEnds) {
  for (const End end : {End::kTaken, End::kSkipped, End::kRefused, End::kUnsearched, End::kUncleared}) {
    SCOPED_TRACE(static_cast<int>(end));
    Borrower borrower(end);
    EXPECT_TRUE(borrower.step(false));
    EXPECT_LE(borrower.device_bytes(), kBudget);
    ASSERT_GT(borrower.borrow(16384), 0);
    EXPECT_EQ(borrower.step(true), end == End::kTaken);
    EXPECT_LE(borrower.device_bytes(), kBudget);
    EXPECT_TRUE(borrower.step(false));
    EXPECT_LE(borrower.device_bytes(), kBudget);
  }
}

}  // namespace
}  // namespace lowtide::testing
