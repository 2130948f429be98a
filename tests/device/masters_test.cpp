// Claims: 16-bit weights with a master step on a device as on the CPU, bit for bit, with their residuals, also if state
// does not fit the budget; each side reads the other's files.
#include "device/device_support.h"
#include "support/device_twins.h"
#include "support/test.h"

namespace lowtide::testing {
namespace {

constexpr int kSteps = 3;

int master_count() { return static_cast<int>(masters().size()); }

// Returns cases for all masters, 16-bit types and two gradient types, with short, odd and long rows.
std::vector<StepCase> make_cases(int rule, int codec, Rng& rng) {
  std::vector<StepCase> cases;
  for (int master = 1; master < master_count(); ++master)
    for (const DType dtype : {DType::kBF16, DType::kF16})
      for (const DType grad : {dtype, DType::kF32}) {
        const std::pair<int64_t, int64_t> shapes[] = {
            {1, 1}, {2, 256}, {rng.between(2, 9), rng.between(1, 255)}, {rng.between(2, 4), rng.between(257, 1200)}};
        for (const auto& [rows, length] : shapes) {
          StepCase& made = cases.emplace_back(rule, codec, dtype, grad, rows, length, rng);
          made.set_master(master, rng);
          // A shard of columns: indices jump between rows, and within rows carry into the upper half of 64 bits.
          if (rng.chance(0.3)) {
            made.origin.row_stride = (length + 4 * kBlockElements) / kBlockElements * kBlockElements;
            made.origin.first_column = (int64_t{1} << 32) - kBlockElements;
          }
        }
      }
  return cases;
}

// Sums differing_bytes, and counts cases in which the step changed nothing.
struct MasterTally {
  int64_t compared = 0, differing = 0, still = 0;

  void add(const StepCase& got, const StepCase& wanted, const StepCase& start) {
    compared += got.bytes();
    differing += differing_bytes(got, wanted);
    still += got.layout.numel > 256 && differing_bytes(got, start) == 0;
  }
};

TEST(DeviceMasters, GiveTheBitsOfTheCpu) {
  LT_NEEDS_DEVICE();
  auto rng = seeded("masters on a device", 37);
  TestDevice& device = TestDevice::get();
  const auto cpu = open_backend("cpu", "");
  MasterTally tally;
  int64_t parameters = 0;
  for (const char* rule : {"adamw", "lion", "sgd", "lamb"})
    for (const char* codec : {"fp32", "dynamic8"}) {
      if (!testing::is_tested(find_rule(rule))) continue;
      const std::vector<StepCase> start = make_cases(find_rule(rule), find_codec(codec), rng);
      std::vector<StepCase> wanted = start, got = start;
      const uint64_t seed = rng.next();
      const auto each_step = [&](std::vector<StepCase>& cases, auto&& take) {
        for (int step = 0; step < kSteps; ++step) {
          Rng of_step(seed + static_cast<uint64_t>(step));
          for (StepCase& c : cases) c.new_gradients(of_step), c.set_step(step + 1, step == 0);
          take();
        }
      };
      each_step(wanted, [&] { step_all(*cpu, wanted, 1); });
      std::vector<DeviceCase> there;
      for (StepCase& c : got) there.emplace_back(c);
      each_step(got, [&] {
        std::vector<StepItem> items;
        for (DeviceCase& c : there) items.push_back(c.item());
        device.backend->step(items, 1, false, device.queue);
        device.wait();
      });
      for (size_t i = 0; i < got.size(); ++i, ++parameters) {
        there[i].fetch();
        EXPECT_EQ(differing_bytes(got[i], wanted[i]), 0)
            << rule << " " << codec << " " << master_info(got[i].master).name << " case " << i;
        tally.add(got[i], wanted[i], start[i]);
      }
    }
  EXPECT_EQ(tally.differing, 0);
  EXPECT_EQ(tally.still, 0) << "control: steps must change something";
  figure("{} parameters with a master after {} steps: {} of {} bytes differ; {} guards whole", parameters, kSteps,
         tally.differing, tally.compared, GuardedBytes::guards_checked);
}

// Control: the comparison catches one wrong bit of a residual, and another key.
TEST(DeviceMasters, ComparisonSeesTheSmallestDifference) {
  LT_NEEDS_DEVICE();
  auto rng = seeded("masters, control", 38);
  TestDevice& device = TestDevice::get();
  for (int master = 1; master < master_count(); ++master) {
    StepCase wanted(find_rule("adamw"), find_codec("fp32"), DType::kBF16, DType::kF32, 2, 300, rng);
    wanted.set_master(master, rng);
    StepCase got = wanted;
    if (got.residual.empty())
      got.seed ^= 1;
    else
      got.residual[0] ^= std::byte{1};
    const StepItem item = wanted.item();
    open_backend("cpu", "")->step({&item, 1}, 1, false, nullptr);
    DeviceCase there(got);
    const StepItem on_device = there.item();
    device.backend->step({&on_device, 1}, 1, false, device.queue);
    there.fetch();
    EXPECT_GT(differing_bytes(got, wanted), 0) << master_info(master).name;
  }
}

std::vector<char> content(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

TEST(DeviceMasters, FilesAndBudgetsChangeNoBit) {
  LT_NEEDS_DEVICE();
  auto rng = seeded("masters in files", 39);
  const std::filesystem::path scratch = std::filesystem::temp_directory_path();
  const std::string host = scratch / ("masters-host-" + std::to_string(getpid())),
                    there = scratch / ("masters-device-" + std::to_string(getpid()));
  int64_t compared = 0, streamed = 0, file_bytes = 0, runs = 0;
  for (const char* rule : {"adamw", "lion", "sgd", "lamb", "lars"}) {
    if (!testing::is_tested(effective_rule(find_rule(rule), default_hyper(rule)))) continue;
    for (int master = 1; master < master_count(); ++master) {
      Config setup{.rule = rule, .state = master % 2 ? "dynamic8" : "fp32", .hyper = default_hyper(rule)};
      setup.hyper.lr = 0.01;
      setup.master = master_info(master).name;
      lowtide::Memory memory{.chunk = 4096, .device = 6 * 4096};
      Twins twins(rng, setup, memory, TestDevice::get().open());
      for (const DType dtype : {DType::kBF16, DType::kF16, DType::kF32}) twins.add(dtype, {7, rng.between(300, 1500)});
      for (int step = 0; step < 2; ++step) twins.step();
      EXPECT_EQ(twins.differing(), 0) << rule << " " << setup.master;
      twins.on_host().save(host);
      twins.on_device().save(there);
      EXPECT_TRUE(content(host) == content(there)) << rule << " " << setup.master;
      twins.on_host().load(there);
      twins.on_device().load(host);
      for (int step = 0; step < 2; ++step) twins.step();
      EXPECT_EQ(twins.differing(), 0) << rule << " " << setup.master << " after loading";
      file_bytes += static_cast<int64_t>(content(there).size());
      compared += twins.compared();
      streamed += twins.on_device().report().moved_per_step > 0;
      ++runs;
    }
  }
  std::filesystem::remove(host);
  std::filesystem::remove(there);
  EXPECT_GE(streamed, runs / 2);
  figure("{} runs, {} of them streaming: 0 of {} bytes differ, nor do {} bytes of files", runs, streamed, compared,
         file_bytes);
}

}  // namespace
}  // namespace lowtide::testing
