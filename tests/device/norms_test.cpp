// Norms on a device have the bits of the CPU's: norms of whole parameters, by block or as exact sums, and of gradients.

#include "backend/cpu/gradient_sums.h"
#include "backend/gradient_reader.h"
#include "backend/term_sums.h"
#include "core/exact_sum.h"
#include "device/device_support.h"
#include "optim/step_plan.h"
#include "support/test.h"

namespace lowtide::testing {
namespace {

std::vector<int> norm_rules() {
  std::vector<int> found;
  for (int rule = 0; rule < std::ssize(rules()); ++rule)
    if (rule_info(rule).norms) found.push_back(rule);
  return found;
}

int any_master(Rng& rng) { return static_cast<int>(rng.below(std::ssize(masters()))); }

// Returns the sums that the device makes of items.
std::vector<kernels::NormSums> sums_on_device(std::span<StepItem> items) {
  TestDevice& device = TestDevice::get();
  const Hyper hyper;
  std::vector<kernels::NormSums> sums(items.size() + 1);  // the last one must stay unused
  kernels::NormSums* const there = device.backend->norm_sums(std::ssize(sums));
  const auto bytes = static_cast<int64_t>(sums.size() * sizeof sums[0]);
  device.backend->device()->fill(device.queue, there, 0, 1, bytes);
  for (size_t i = 0; i < items.size(); ++i)
    items[i].norms = there + i, items[i].hyper = &hyper, items[i].adds_norms = true;
  device.backend->add_norms(items, device.queue);
  device.backend->device()->copy(device.queue, sums.data(), there, bytes);
  device.wait();
  return sums;
}

// Returns true if these are the sums of the blocks.
bool are_sums(const kernels::NormSums& got, std::span<const BlockNorms> blocks) {
  for (int t = 0; t < 2; ++t) {
    ExactSum wanted, sum;
    int64_t others = 0;
    for (const BlockNorms& block : blocks)
      if (std::isfinite(block.sum[t]))
        wanted.add(block.sum[t], 2 * std::ilogb(block.unit[t]));
      else
        ++others;
    ExactSum::Limbs limbs;
    std::copy_n(got.limbs[t], limbs.size(), limbs.begin());
    sum.set_limbs(limbs);
    if (got.others[t] != others || sum.limbs() != wanted.limbs()) return false;
  }
  return true;
}

// Compares norms on the CPU and on the device, which must not change the cases.
struct Compared {
  int64_t blocks = 0, differing = 0, changed = 0;

  void run(std::vector<StepCase>& cases) {
    TestDevice& device = TestDevice::get();
    const std::vector<StepCase> before = cases;
    std::vector<DeviceCase> there;
    for (StepCase& c : cases) there.emplace_back(c);
    std::vector<StepItem> on_cpu, on_device;
    int64_t count = 0;
    for (size_t i = 0; i < cases.size(); ++i) {
      on_cpu.push_back(cases[i].item()), on_device.push_back(there[i].item());
      count += blocks_of(on_cpu.back());
    }
    std::vector<BlockNorms> wanted(static_cast<size_t>(count));
    open_backend("cpu", "")->norms(on_cpu, 1, wanted, nullptr);
    blocks += count;
    if (device.backend->norm_sums(1)) {
      const std::vector<kernels::NormSums> got = sums_on_device(on_device);
      std::span<const BlockNorms> left = wanted;
      for (size_t i = 0; i < cases.size(); ++i) {
        const auto of_item = static_cast<size_t>(blocks_of(on_cpu[i]));
        differing += are_sums(got[i], left.first(of_item)) ? 0 : sizeof got[i];
        left = left.subspan(of_item);
      }
      EXPECT_TRUE(are_sums(got.back(), {}));
    } else {
      std::vector<BlockNorms> got(wanted.size());
      if (count) std::memset(static_cast<void*>(got.data()), 0xa5, got.size() * sizeof got[0]);
      device.backend->norms(on_device, 1, got, device.queue);
      differing += testing::differing_bytes(reinterpret_cast<const std::byte*>(got.data()),
                                            reinterpret_cast<const std::byte*>(wanted.data()),
                                            static_cast<int64_t>(got.size() * sizeof got[0]));
    }
    for (size_t i = 0; i < cases.size(); ++i) {
      there[i].fetch();
      changed += differing_bytes(cases[i], before[i]);
    }
  }
};

TEST(DeviceNorms, GiveTheBitsOfTheCpu) {
  LT_NEEDS_DEVICE();
  auto rng = seeded("norms on the device", 36);
  Compared of;
  int64_t calls = 0;
  for (const int rule : norm_rules())
    for (int codec = 0; codec < std::ssize(codecs()); ++codec)
      for (const int pair : {0, 4, 8, 5}) {
        std::vector<std::pair<int64_t, int64_t>> shapes = {{0, 5}, {3, 0}, {1, 1}, {2, 256}, {1, 256 * 20 + 77}};
        shapes.emplace_back(rng.between(2, 40), rng.between(1, 255));
        shapes.emplace_back(rng.between(2, 5), rng.between(257, 1200));
        std::vector<StepCase> cases;
        for (const auto& [rows, length] : shapes) {
          cases.emplace_back(rule, codec, static_cast<DType>(pair / 3), static_cast<DType>(pair % 3), rows, length,
                             rng);
          cases.back().set_master(any_master(rng), rng);
        }
        // Some of their squares do not fit float32.
        for (int64_t i = 0; pair == 0 && i < cases.back().layout.numel; ++i)
          put(cases.back().param, DType::kF32, i, rng.over_binades(-149, 127));
        of.run(cases);
        ++calls;
      }
  EXPECT_EQ(of.differing, 0);
  EXPECT_EQ(of.changed, 0);
  figure("{} calls, {} blocks, {} bytes differ; {} guards whole", calls, of.blocks, of.differing,
         GuardedBytes::guards_checked);
}

// One call takes items of all kinds in random order, and each block's norms are at its item's place.
TEST(DeviceNorms, OneCallTakesItemsOfAllKinds) {
  LT_NEEDS_DEVICE();
  auto rng = seeded("mixed norms", 37);
  const std::vector<int> of = norm_rules();
  std::vector<StepCase> cases;
  for (int i = 0; i < share_of(300); ++i)
    cases.emplace_back(of[static_cast<size_t>(rng.below(std::ssize(of)))],
                       static_cast<int>(rng.below(std::ssize(codecs()))), static_cast<DType>(rng.below(3)),
                       static_cast<DType>(rng.below(3)), rng.between(0, 3), rng.between(1, 700), rng);
  for (StepCase& c : cases) c.set_master(any_master(rng), rng);
  Compared compared;
  compared.run(cases);
  EXPECT_EQ(compared.differing, 0);
  std::vector<StepCase> none;
  compared.run(none);
  figure("{} items, {} blocks, {} bytes differ", cases.size(), compared.blocks, compared.differing);
}

// The sums of terms over all parameters of rules that step by them.
TEST(DeviceNorms, SumsOfTermsAreThoseOfTheCpu) {
  LT_NEEDS_DEVICE();
  auto rng = seeded("sums of terms on the device", 41);
  TestDevice& device = TestDevice::get();
  std::vector<std::unique_ptr<Backend>> targets;
  for (const std::string& target : cpu_targets()) targets.push_back(open_backend("cpu", target));
  int64_t calls = 0, elements = 0, differing = 0, changed = 0;
  for (int rule = 0; rule < std::ssize(rules()); ++rule)
    for (int codec = 0; rule_info(rule).sums && codec < std::ssize(codecs()); ++codec)
      for (int round = 0; round < 4; ++round) {
        std::vector<std::pair<int64_t, int64_t>> shapes = {{0, 5}, {3, 0}, {1, 1}, {2, 256}};
        shapes.emplace_back(rng.between(2, 40), rng.between(1, 255));
        shapes.emplace_back(rng.between(2, 5), rng.between(257, 1200));
        shapes.emplace_back(1, 256 * 35 + 77);
        std::vector<StepCase> cases;
        for (const auto& [rows, length] : shapes) {
          const auto any = [&] { return static_cast<DType>(rng.below(3)); };
          cases.emplace_back(rule, codec, any(), round ? DType::kF32 : any(), rows, length, rng);
          elements += cases.back().layout.numel;
          for (int64_t i = 0; round == 1 && i < cases.back().layout.numel; ++i)
            put(cases.back().grad, DType::kF32, i, rng.over_binades(-149, 100));
        }
        const double bad = round == 2 ? INFINITY : round == 3 ? NAN : 0;
        if (bad != 0) put(cases.back().grad, DType::kF32, 300, bad);
        const std::vector<StepCase> before = cases;
        std::vector<DeviceCase> there;
        for (StepCase& c : cases) there.emplace_back(c);
        std::vector<StepItem> on_cpu, on_device;
        for (size_t i = 0; i < cases.size(); ++i)
          on_cpu.push_back(cases[i].item()), on_device.push_back(there[i].item());
        TermSums got;
        got.above.add(1, 0);  // sums are added to what is there
        device.backend->sum_terms(on_device, 1, got, device.queue);
        double of_cpu[2], of_device[2];
        got.put(of_device);
        EXPECT_EQ(got.are_finite(), bad == 0);
        for (const std::unique_ptr<Backend>& target : targets) {
          TermSums wanted;
          wanted.above.add(1, 0);
          target->sum_terms(on_cpu, 1, wanted, nullptr);
          wanted.put(of_cpu);
          EXPECT_EQ(wanted.are_finite(), bad == 0);
          for (int t = 0; t < 2; ++t)
            differing += std::isnan(of_cpu[t]) ? !std::isnan(of_device[t])
                                               : std::memcmp(of_cpu + t, of_device + t, sizeof(double)) != 0;
        }
        for (size_t i = 0; i < cases.size(); ++i) {
          there[i].fetch();
          changed += differing_bytes(cases[i], before[i]);
        }
        TermSums nothing;
        device.backend->sum_terms({}, 1, nothing, device.queue);
        EXPECT_EQ(nothing.limbs(), TermSums().limbs());
        ++calls;
      }
  EXPECT_EQ(differing, 0);
  EXPECT_EQ(changed, 0);
  figure("{} calls, {} elements, {} CPU targets, {} sums differ; {} guards whole", calls, elements, targets.size(),
         differing, GuardedBytes::guards_checked);
}

// Gradients on the CPU and on the device, with the sums of both.
struct Gradients {
  std::deque<std::vector<std::byte>> data;
  std::deque<Layout> layouts, of_params;
  std::vector<GuardedBytes> there;
  std::vector<cpu::GradientView> views;
  std::vector<StepItem> items;

  // transposed: gives it the strides of a transposed matrix. Magnitudes range from 2^(top - spread) to 2^(top + 1).
  void add(DType dtype, int64_t rows, int64_t columns, bool transposed, int top, int spread, Rng& rng) {
    const int64_t sizes[] = {rows, columns}, strides[] = {1, rows};
    layouts.push_back(transposed ? Layout::make(sizes, strides) : Layout::make(sizes, {}));
    of_params.push_back(Layout::make(sizes, {}));
    data.emplace_back(static_cast<size_t>(rows * columns * dtype_bytes(dtype)));
    for (int64_t i = 0; i < rows * columns; ++i)
      put(data.back(), dtype, i, rng.chance(0.1) ? 0 : rng.over_binades(top - spread, top + 1));
    there.emplace_back(data.back().data(), data.back().size());
    views.push_back({data.back().data(), &layouts.back(), dtype});
    StepItem item;
    item.grad = there.back().data(), item.grad_layout = &layouts.back(), item.grad_dtype = dtype;
    item.param_layout = &of_params.back();
    items.push_back(item);
  }
  void set_first(uint32_t bits) {
    std::memcpy(data[0].data(), &bits, static_cast<size_t>(dtype_bytes(views[0].dtype)));
    there[0].put(data[0].data());
  }

  kernels::Sums on_device() {
    TestDevice& device = TestDevice::get();
    return device.backend->gradient_reader()->read_gradients(items, device.queue);
  }
  // Returns true if both sums are equal.
  bool agree() {
    const kernels::Sums got = on_device();
    const cpu::GradientSums wanted = cpu::gradient_sums(views, 1, "");
    ExactSum::Limbs limbs;
    std::copy_n(got.limbs, limbs.size(), limbs.begin());
    ExactSum sum;
    sum.set_limbs(limbs);
    return got.largest == wanted.largest && sum.limbs() == wanted.squares.limbs();
  }
};

// Exponents that fit a member's window, that need several windows, and all exponents.
TEST(DeviceNorms, SumsOverGradientsAreThoseOfTheCpu) {
  LT_NEEDS_DEVICE();
  auto rng = seeded("sums on the device", 38);
  int64_t calls = 0, elements = 0;
  for (int round = 0; round < share_of(60); ++round) {
    const int spread = std::vector{1, 20, 45, 130, 260}[static_cast<size_t>(round % 5)];
    Gradients of;
    for (int64_t tensors = rng.between(1, 9); tensors > 0; --tensors) {
      const auto dtype = static_cast<DType>(rng.below(3));
      const int highest = dtype == DType::kF16 ? 14 : 126, lowest = dtype == DType::kF16 ? -24 : -149;
      const int top = static_cast<int>(rng.between(std::min(highest, lowest + spread), highest));
      const int64_t columns = rng.chance(0.2) ? rng.between(0, 9) : rng.between(1, 2500);
      of.add(dtype, rng.chance(0.5) ? 1 : rng.between(0, 40), columns, rng.chance(0.3), top,
             std::min(spread, top - lowest), rng);
      elements += of.layouts.back().numel;
    }
    ++calls;
    ASSERT_TRUE(of.agree()) << "round " << round;
  }
  EXPECT_TRUE(Gradients().agree());
  figure("{} calls, {} elements, 0 sums differ", calls, elements);
}

// Enough of the largest and of the smallest values to make sums carry.
TEST(DeviceNorms, SumsOverLargeGradientsCarry) {
  LT_NEEDS_DEVICE();
  auto rng = seeded("large sums on the device", 39);
  Gradients of;
  for (const auto& [dtype, top] : {std::pair{DType::kF32, 126}, {DType::kBF16, -100}, {DType::kF32, 0}})
    of.add(dtype, 1, share_of(1'500'000), false, top, 0, rng);
  EXPECT_TRUE(of.agree());
}

TEST(DeviceNorms, TellOfGradientsThatAreNotFinite) {
  LT_NEEDS_DEVICE();
  auto rng = seeded("not finite on the device", 40);
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
    Gradients of;
    of.add(dtype, 3, 700, false, 1, 20, rng);
    // A negative infinity, and a NaN.
    const uint32_t infinity = dtype == DType::kF32 ? 0xff800000u : dtype == DType::kBF16 ? 0xff80u : 0xfc00u;
    of.set_first(infinity);
    EXPECT_EQ(std::bit_cast<float>(of.on_device().largest), std::numeric_limits<float>::infinity());
    of.set_first(infinity + 1);
    EXPECT_TRUE(std::isnan(std::bit_cast<float>(of.on_device().largest)));
  }
}

}  // namespace
}  // namespace lowtide::testing
