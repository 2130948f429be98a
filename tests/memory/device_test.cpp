// Claims: on a device that runs everything late, in any legal order, an optimizer gives the bits of one in host memory,
// whatever the budget of device memory, which it never exceeds; what it queues has no race; what the caller queues
// next, on the same queue, sees the step done.
#include <gtest/gtest.h>

#include <cstdio>
#include <map>

#include "backend/fake/fake_backend.h"
#include "optim/optimizer_env.h"
#include "support/optimizer_case.h"
#include "support/random.h"
#include "support/temporary.h"

namespace lowtide::testing {
namespace {

using fake::FakeBackend;

// Tensors in the fake device's memory, filled on a queue.
class DeviceTensors {
 public:
  DeviceTensors(FakeBackend& backend, void* queue) : backend_(backend), queue_(queue) {}

  void* put(const Tensor& tensor) {
    const auto bytes = static_cast<int64_t>(tensor.data.size());
    memory_.emplace_back(backend_, MemoryKind::kDevice, std::max<int64_t>(bytes, 1));
    set(memory_.back().data(), tensor);
    return memory_.back().data();
  }
  // Late: the contents are kept until then.
  void set(void* to, const Tensor& tensor) {
    kept_.push_back(tensor.data);
    if (!tensor.data.empty()) backend_.copy(queue_, to, kept_.back().data(), static_cast<int64_t>(tensor.data.size()));
  }
  void get(const void* from, Tensor& tensor) {
    if (tensor.data.empty()) return;
    backend_.copy(queue_, tensor.data.data(), from, static_cast<int64_t>(tensor.data.size()));
    backend_.host_wait(backend_.record(queue_));
  }

 private:
  FakeBackend& backend_;
  void* queue_;
  std::deque<DeviceBytes> memory_;
  std::deque<std::vector<std::byte>> kept_;
};

// The same optimizer twice: in host memory, and on the fake device under `memory`.
class Twins {
 public:
  Twins(Rng& rng, Config setup, const lowtide::Memory& memory, int64_t drop_wait = -1)
      : rng_(rng), on_host_(make_optimizer(setup)) {
    auto backend = std::make_unique<FakeBackend>(fake::FakeBackendOptions{rng.next(), drop_wait});
    backend_ = backend.get();
    queue_ = backend_->make_queue();
    tensors_.emplace(*backend_, queue_);
    OptimizerOptions options;
    options.rule = setup.rule;
    options.nonfinite = setup.nonfinite;
    options.threads = 1;
    options.memory = memory;
    on_device_.emplace(OptimizerEnv::make(options, system_env(), std::move(backend)));
    group_.hyper = setup.hyper;
    group_.state = setup.state;
    group_.min_quantized_numel = setup.min_quantized_numel;
    on_device_->add_group(group_);
  }
  ~Twins() {
    tensors_.reset();  // before their device
  }

  void add(DType dtype, std::vector<int64_t> sizes) {
    Tensor& param = params_.emplace_back(dtype, sizes);
    param.randomize(rng_);
    on_host_.add_param(0, param.view());
    grads_.emplace_back(rng_.chance(0.5) ? dtype : DType::kF32, std::move(sizes));
    device_params_.push_back(tensors_->put(param));
    device_grads_.push_back(tensors_->put(grads_.back()));
    on_device_->add_param(0, {device_params_.back(), dtype, param.sizes, {}});
  }

  // share: of the parameters that get a gradient.
  void step(double share = 1) {
    std::vector<Gradient> here, there;
    for (size_t i = 0; i < params_.size(); ++i) {
      if (!rng_.chance(share)) {
        here.emplace_back();
        there.emplace_back();
        continue;
      }
      grads_[i].randomize(rng_);
      tensors_->set(device_grads_[i], grads_[i]);  // after the step before, which the caller has not waited for
      here.push_back(grads_[i].gradient());
      if (grads_[i].numel == 0) here.back().data = this;  // any address: it counts as stepped, as on the device
      there.push_back({device_grads_[i], grads_[i].dtype, nullptr});
    }
    on_host_.step(here);
    StepOptions options;
    options.stream = queue_;
    on_device_->step(there, options);
    ++steps_;
  }

  // Bytes in which parameters, states or counts differ.
  int64_t differing() {
    on_device_->place_states();  // as on the host, where parameters get theirs when they are added
    std::deque<Tensor> got = params_;
    std::vector<const Tensor*> mine, theirs;
    for (size_t i = 0; i < params_.size(); ++i) {
      tensors_->get(device_params_[i], got[i]);
      mine.push_back(&params_[i]);
      theirs.push_back(&got[i]);
    }
    const auto a = snapshot(on_host_, mine), b = snapshot(*on_device_, theirs);
    if (a.size() != b.size()) return -1;
    int64_t count = 0;
    for (size_t i = 0; i < a.size(); ++i) count += a[i] != b[i];
    bytes_ += static_cast<int64_t>(a.size());
    return count;
  }

  Optimizer& on_host() { return on_host_; }
  Optimizer& on_device() { return *on_device_; }
  FakeBackend& backend() { return *backend_; }
  int64_t compared() const { return bytes_; }
  int64_t steps() const { return steps_; }

 private:
  Rng& rng_;
  Optimizer on_host_;
  std::optional<Optimizer> on_device_;
  FakeBackend* backend_;
  void* queue_;
  std::optional<DeviceTensors> tensors_;
  GroupOptions group_;
  std::deque<Tensor> params_, grads_;
  std::vector<void*> device_params_, device_grads_;
  int64_t bytes_ = 0, steps_ = 0;
};

template <class T>
T pick(Rng& rng, const std::vector<T>& from) {
  return from[static_cast<size_t>(rng.below(static_cast<int64_t>(from.size())))];
}

Config random_setup(Rng& rng) {
  Config setup;
  setup.rule = pick(rng, rule_names());
  setup.state = pick(rng, codec_names());
  setup.hyper = default_hyper(setup.rule);
  setup.hyper.lr = 0.01;
  if (setup.rule == "sgd") setup.hyper.momentum = 0.9;
  return setup;
}

std::vector<int64_t> random_sizes(Rng& rng) {
  if (rng.chance(0.1)) return {};
  if (rng.chance(0.1)) return {0, 3};
  if (rng.chance(0.3)) return {rng.between(1, 9000)};
  return {rng.between(1, 12), rng.between(1, 1500)};
}

// What is queued, over all of it, has no race.
void expect_no_race(FakeBackend& backend) {
  for (const auto& race : backend.fake().race_checker().races()) ADD_FAILURE() << to_string(race);
}

TEST(Device, EveryBudgetGivesTheBitsOfTheHost) {
  Rng rng = seeded("optimizers on the fake device", 71);
  int64_t compared = 0, steps = 0, plans = 0, streamed = 0, managed = 0, above = 0, refused = 0;
  for (int trial = 0; trial < 400; ++trial) {
    const Config setup = random_setup(rng);
    lowtide::Memory memory;
    memory.chunk_bytes = rng.between(1, 4) * 4096;
    memory.managed = rng.chance(0.15);
    if (!memory.managed && rng.chance(0.85)) memory.device_bytes = rng.between(1, 30) * 4096;
    Twins twins(rng, setup, memory);
    for (int64_t n = rng.between(1, 6); n > 0; --n)
      twins.add(pick(rng, std::vector{DType::kF32, DType::kBF16, DType::kF16}), random_sizes(rng));
    const bool some = rng.chance(0.3);
    try {
      for (int step = 0; step < 8; ++step) {
        twins.step(some ? 0.5 : 1);
        const MemoryReport report = twins.on_device().report();
        above += memory.device_bytes >= 0 && report.device_bytes > memory.device_bytes;
        if (rng.chance(0.2)) {
          EXPECT_EQ(twins.differing(), 0) << "trial " << trial;
        }
        if (rng.chance(0.1)) {
          twins.on_device().offload();
          EXPECT_EQ(twins.on_device().report().device_bytes, 0);
          if (rng.chance(0.5)) twins.on_device().onload();
        }
        if (rng.chance(0.1)) twins.add(DType::kF32, random_sizes(rng));
      }
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find("device memory"), std::string::npos) << error.what();
      ++refused;
      continue;
    }
    EXPECT_EQ(twins.differing(), 0) << "trial " << trial << " " << setup.rule << " " << setup.state;
    const MemoryReport report = twins.on_device().report();
    streamed += report.moved_per_step > 0;
    managed += report.managed_bytes > 0;
    EXPECT_EQ(report.disk_bytes, 0);
    expect_no_race(twins.backend());
    ++plans;
    compared += twins.compared();
    steps += twins.steps();
  }
  EXPECT_EQ(above, 0);
  EXPECT_GT(streamed, 80);
  EXPECT_GT(managed, 20);
  EXPECT_LT(refused, 80);
  std::printf(
      "%lld plans (%lld streaming, %lld managed, %lld more refused), %lld steps: differing bytes 0 of %lld, above "
      "the budget %lld\n",
      static_cast<long long>(plans), static_cast<long long>(streamed), static_cast<long long>(managed),
      static_cast<long long>(refused), static_cast<long long>(steps), static_cast<long long>(compared),
      static_cast<long long>(above));
}

// Every wait is needed or a no-op: without it there is a race.
TEST(Device, EveryDroppedWaitIsCaught) {
  Rng rng = seeded("dropped waits", 72);
  int64_t dropped = 0, needed = 0, caught = 0, false_alarms = 0;
  for (int trial = 0; trial < 12; ++trial) {
    const Config setup = random_setup(rng);
    const uint64_t seed = rng.next();
    lowtide::Memory memory;
    memory.chunk_bytes = 4096;
    memory.device_bytes = (1 + trial % 6) * 4096;
    int64_t waits = 1;
    for (int64_t drop = -1; drop < waits; ++drop) {
      Rng own(seed);
      Twins twins(own, setup, memory, drop);
      twins.add(DType::kF32, {3, 1500});
      twins.add(DType::kBF16, {2000});
      for (int step = 0; step < 4; ++step) twins.step(step == 2 ? 0.5 : 1);
      const bool found = twins.differing() != 0 || !twins.backend().fake().race_checker().races().empty();
      if (drop < 0) {
        EXPECT_FALSE(found) << "control";
        waits = twins.backend().waits();
        continue;
      }
      ++dropped;
      const bool matters = twins.backend().dropped_mattered();
      needed += matters;
      caught += matters && found;
      false_alarms += !matters && found;
    }
  }
  EXPECT_GT(needed, 100);
  EXPECT_EQ(caught, needed);
  EXPECT_EQ(false_alarms, 0);
  std::printf("%lld waits dropped, %lld needed, caught %lld, false alarms %lld\n", static_cast<long long>(dropped),
              static_cast<long long>(needed), static_cast<long long>(caught), static_cast<long long>(false_alarms));
}

// Budgets of device memory that cannot hold a ring, of host memory that cannot hold the rest, and managed memory beyond
// the device, are refused with what is needed; nothing has changed.
TEST(Device, BudgetsThatCannotBeAreRefused) {
  Rng rng = seeded("budgets", 73);
  struct Case {
    lowtide::Memory memory;
    const char* says;
  };
  lowtide::Memory small, host, managed, both;
  small.device_bytes = 4096, small.chunk_bytes = 8192;
  host.device_bytes = 16384, host.chunk_bytes = 4096, host.ram_bytes = 8192;
  managed.managed = true, managed.device_bytes = 16384;
  both.disk = "/tmp", both.ram_bytes = 0;
  int refused = 0;
  for (const Case& one : {Case{small, "at least 8192 bytes of device memory"}, Case{host, "bytes of host memory"},
                          Case{managed, "managed memory must not exceed"}, Case{both, "got a disk"}}) {
    Config setup;
    setup.state = "fp32";
    try {
      Twins twins(rng, setup, one.memory);
      twins.add(DType::kF32, {20, 1000});
      twins.step();
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kInvalidArgument);
      EXPECT_NE(std::string(error.what()).find(one.says), std::string::npos) << error.what();
      ++refused;
    }
  }
  EXPECT_EQ(refused, 4);
  std::printf("refused %d/4\n", refused);
}

}  // namespace
}  // namespace lowtide::testing
