// Claim: if steps come in buckets of parameters, as with gradient release, streaming state is read as often as it is
// written, whatever the bucket size. A bucket out of turn costs at most one ring, and changes no bit.
#include "support/fake_twins.h"
#include "support/test.h"

namespace lowtide::testing {
namespace {

constexpr int kParams = 18, kIterations = 6;
constexpr int64_t kElements = 40000, kBudget = 1 << 20;  // 5.8 MB of state, in chunks of 64 KiB, the default

// Returns the parameters of each bucket, in the order of a backward pass.
std::vector<std::vector<size_t>> buckets_of(size_t size) {
  std::vector<std::vector<size_t>> buckets;
  for (size_t i = kParams; i-- > 0;) {
    if (buckets.empty() || buckets.back().size() == size) buckets.emplace_back();
    buckets.back().push_back(i);
  }
  return buckets;
}

bool contains(const std::vector<size_t>& bucket, size_t param) {
  return std::find(bucket.begin(), bucket.end(), param) != bucket.end();
}

struct Moved {
  int64_t read = 0, written = 0;
};
Moved moved(const MemoryReport& report) { return {report.read_bytes, report.written_bytes}; }

void expect_even(const Moved& all, const Moved& first_iteration, int64_t ring, const std::string& what) {
  EXPECT_GT(first_iteration.written, 0) << what;
  EXPECT_LE(all.read, all.written + ring) << what;
  const double ratio =
      static_cast<double>(all.read - first_iteration.read) / static_cast<double>(all.written - first_iteration.written);
  EXPECT_LE(ratio, 1.02) << what;
  figure("{}: read / written {}", what, ratio);
}

TEST(Buckets, OnADeviceStateIsReadAsOftenAsItIsWritten) {
  Rng rng = seeded("buckets on a device", 97);
  int64_t compared = 0;
  for (const size_t size : {1, 3, 7, kParams})
    for (const char* transfer : {"copy", "hybrid"}) {
      fake::FakeBackendOptions options{.seed = rng.next(), .steps_pinned = true};
      Config setup{.state = "fp32", .hyper = default_hyper("adamw")};
      lowtide::Memory memory{.device = kBudget, .transfer = transfer};
      FakeTwins twins(rng, setup, memory, options);
      for (int i = 0; i < kParams; ++i) twins.add(DType::kBF16, {kElements});
      twins.on_device().place_states();
      Moved first;
      for (int i = 0; i < kIterations; ++i) {
        for (const auto& bucket : buckets_of(size)) twins.step_where([&](size_t p) { return contains(bucket, p); });
        if (i == 0) first = moved(twins.on_device().report());
      }
      const std::string what = "device, " + std::string(transfer) + ", " + std::to_string(size) + " a bucket";
      expect_even(moved(twins.on_device().report()), first, kBudget, what);
      // Leave out a bucket, and run an iteration in another order.
      auto buckets = buckets_of(size);
      if (buckets.size() > 2) buckets.erase(buckets.begin() + 1);
      std::reverse(buckets.begin(), buckets.end());
      for (const auto& bucket : buckets) twins.step_where([&](size_t p) { return contains(bucket, p); });
      EXPECT_EQ(twins.differing(), 0) << what;
      expect_no_race(twins.fake);
      compared += twins.compared();
    }
  figure("differing bytes 0 of {}", compared);
}

TEST(Buckets, OnDiskStateIsReadAsOftenAsItIsWritten) {
  Rng rng = seeded("buckets on disk", 98);
  const TemporaryDirectory directory;
  for (const size_t size : {1, 3, 7, kParams}) {
    Config setup{.state = "fp32", .hyper = default_hyper("adamw")};
    Optimizer in_ram = make_optimizer(setup);
    setup.memory.host = kBudget, setup.memory.disk = directory.path();
    Optimizer on_disk = make_optimizer(setup);
    std::vector<Tensor> params, twins, grads;
    for (int i = 0; i < kParams; ++i) {
      params.emplace_back(DType::kBF16, std::vector{kElements}).randomize(rng);
      twins.push_back(params.back());
      grads.emplace_back(DType::kBF16, std::vector{kElements}).randomize(rng);
    }
    for (size_t i = 0; i < kParams; ++i) in_ram.add_param(0, params[i].view()), on_disk.add_param(0, twins[i].view());
    Moved first;
    for (int i = 0; i < kIterations; ++i) {
      for (const auto& bucket : buckets_of(size)) {
        std::vector<Gradient> gradients(kParams);
        for (const size_t p : bucket) gradients[p] = grads[p].gradient();
        in_ram.step(gradients);
        on_disk.step(gradients);
      }
      if (i == 0) first = moved(on_disk.report());
    }
    const std::string what = "disk, " + std::to_string(size) + " a bucket";
    expect_even(moved(on_disk.report()), first, kBudget, what);
    std::vector<const Tensor*> here, there;
    for (size_t i = 0; i < kParams; ++i) here.push_back(&params[i]), there.push_back(&twins[i]);
    EXPECT_EQ(snapshot(in_ram, here), snapshot(on_disk, there)) << what;
  }
}

}  // namespace
}  // namespace lowtide::testing
