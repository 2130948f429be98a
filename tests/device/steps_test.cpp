// A step on a device gives the bits of a step on the CPU: every rule, codec and pair of element types.
#include "backend/kernels/items.h"
#include "backend/plugin_backend.h"
#include "device/device_support.h"
#include "support/test.h"

namespace lowtide::testing {
namespace {

constexpr int kSteps = 3, kPairs = 9;

int codec_count() { return static_cast<int>(codecs().size()); }

int any_master(Rng& rng) { return static_cast<int>(rng.below(std::ssize(masters()))); }

// Returns cases of shapes (rows, row length): empty, one element, short tails, whole blocks, and random ones.
std::vector<StepCase> make_cases(int rule, int codec, int pair, Rng& rng) {
  std::vector<std::pair<int64_t, int64_t>> shapes = {{0, 5}, {3, 0}, {1, 1}, {2, 256}, {3, 512}, {1, 256 * 20 + 77}};
  shapes.emplace_back(1, rng.between(1, 255));
  shapes.emplace_back(rng.between(2, 40), rng.between(1, 255));
  shapes.emplace_back(rng.between(2, 5), rng.between(257, 1200));
  std::vector<StepCase> cases;
  for (const auto& [rows, length] : shapes)
    cases.emplace_back(rule, codec, static_cast<DType>(pair / 3), static_cast<DType>(pair % 3), rows, length, rng);
  return cases;
}

void new_step(std::vector<StepCase>& cases, int step, uint64_t seed) {
  Rng rng(seed + static_cast<uint64_t>(step));
  for (StepCase& c : cases) {
    c.new_gradients(rng);
    c.set_step(step + 1, step == 0);
  }
}

void step_on_device(std::vector<StepCase>& cases, int steps, uint64_t seed, void* stream) {
  TestDevice& device = TestDevice::get();
  std::vector<DeviceCase> on_device;
  for (StepCase& c : cases) on_device.emplace_back(c);
  for (int step = 0; step < steps; ++step) {
    new_step(cases, step, seed);
    std::vector<StepItem> items;
    for (DeviceCase& c : on_device) items.push_back(c.item());
    device.backend->step(items, 1, false, stream);
    device.wait();
  }
  for (DeviceCase& c : on_device) c.fetch();
}

void step_on_cpu(std::vector<StepCase>& cases, int steps, uint64_t seed) {
  const auto cpu = open_backend("cpu", "");
  for (int step = 0; step < steps; ++step) {
    new_step(cases, step, seed);
    step_all(*cpu, cases, 1);
  }
}

TEST(DeviceSteps, GiveTheBitsOfTheCpu) {
  LT_NEEDS_DEVICE();
  auto rng = seeded("steps", 30);
  int64_t grid = 0, combinations = 0, comparisons = 0, bytes = 0, differing = 0, still = 0;
  for (const int rule : tested_rules())
    for (int codec = 0; codec < codec_count(); ++codec)
      for (int pair = 0; pair < kPairs; ++pair) {
        if (!in_share(grid++)) continue;
        ++combinations;
        const std::vector<StepCase> start = make_cases(rule, codec, pair, rng);
        std::vector<StepCase> wanted = start, got = start;
        const uint64_t seed = rng.next();
        step_on_cpu(wanted, kSteps, seed);
        step_on_device(got, kSteps, seed, TestDevice::get().queue);
        for (size_t i = 0; i < got.size(); ++i, ++comparisons) {
          const int64_t bad = differing_bytes(got[i], wanted[i]);
          if (bad)
            ADD_FAILURE() << rule_info(rule).name << " " << codec_info(codec).name << " pair " << pair << " case " << i
                          << ": " << bad << " bytes; "
                          << same_bits(got[i].param.data(), wanted[i].param.data(), got[i].param_dtype,
                                       got[i].layout.numel)
                                 .message();
          differing += bad, bytes += got[i].bytes();
          still += got[i].layout.numel > 256 && differing_bytes(got[i], start[i]) == 0;
        }
      }
  EXPECT_EQ(differing, 0);
  EXPECT_EQ(still, 0) << "control: steps must change something";
  EXPECT_NEAR(static_cast<double>(combinations), share() * std::size(tested_rules()) * codec_count() * kPairs, 3);
  figure(
      "{} combinations of rule, codec and types, {} comparisons after {} steps, {} bytes, {} differ; {} guards whole",
      combinations, comparisons, kSteps, bytes, differing, GuardedBytes::guards_checked);
}

// Control: the comparison catches a learning rate that is one float off.
TEST(DeviceSteps, ComparisonSeesTheSmallestDifference) {
  LT_NEEDS_DEVICE();
  auto rng = seeded("control", 31);
  std::vector<StepCase> wanted = make_cases(find_rule("adamw"), 0, 0, rng), got = wanted;
  for (StepCase& c : got) c.lr = static_cast<double>(std::nextafter(static_cast<float>(c.lr), 1.f));
  step_on_cpu(wanted, 1, 1);
  step_on_device(got, 1, 1, TestDevice::get().queue);
  int64_t differing = 0;
  for (size_t i = 0; i < got.size(); ++i) differing += differing_bytes(got[i], wanted[i]);
  EXPECT_GT(differing, 0);
  figure("{} bytes differ", differing);
}

// Stands for a queued search on backends without one: a word on the device that says `found`.
class FixedGuard final : public Guard {
 public:
  explicit FixedGuard(uint32_t found) : found_(found), word_(&found_, sizeof found_) {}
  int64_t first() override { return found_ == kernels::kNoItem ? -1 : static_cast<int64_t>(found_); }
  const uint32_t* word() const override { return reinterpret_cast<const uint32_t*>(word_.data()); }

 private:
  uint32_t found_;
  GuardedBytes word_;
};

// An array and room for it elsewhere, at the same distance for all arrays.
class TwoPlaces {
 public:
  static constexpr size_t kDistance = size_t{1} << 16;

  template <class T>
  explicit TwoPlaces(const std::vector<T>& array)
      : before_(bytes_of(array)), memory_(nullptr, before_.empty() ? 0 : 2 * kDistance) {
    std::vector<std::byte> start(2 * kDistance, kUntouched);
    std::copy(before_.begin(), before_.end(), start.begin());
    memory_.put(start.data());
  }
  std::byte* data() const { return memory_.data(); }
  // Counts bytes that differ from the earlier contents here, and from `after` (empty: untouched) elsewhere.
  template <class T>
  int64_t differing(const std::vector<T>& after) {
    if (before_.empty()) return 0;
    std::vector<std::byte> now(2 * kDistance), wanted(2 * kDistance, kUntouched);
    memory_.get(now.data());
    std::copy(before_.begin(), before_.end(), wanted.begin());
    const std::vector<std::byte> there = bytes_of(after);
    std::copy(there.begin(), there.end(), wanted.begin() + kDistance);
    return differing_bytes(now.data(), wanted.data(), static_cast<int64_t>(now.size()));
  }

 private:
  static constexpr std::byte kUntouched{0xa5};
  template <class T>
  static std::vector<std::byte> bytes_of(const std::vector<T>& array) {
    const auto* const data = reinterpret_cast<const std::byte*>(array.data());
    return {data, data + array.size() * sizeof(T)};
  }
  std::vector<std::byte> before_;
  GuardedBytes memory_;
};

// States that are written elsewhere are complete there and unchanged where they are read; a guard stops all of it.
TEST(DeviceSteps, WriteElsewhereAndStopAtGuards) {
  LT_NEEDS_DEVICE();
  auto rng = seeded("elsewhere", 33);
  TestDevice& device = TestDevice::get();
  const auto cpu = open_backend("cpu", "");
  int64_t steps = 0, differing = 0;
  for (const int rule : tested_rules())
    for (int codec = 0; codec < codec_count(); ++codec)
      for (const uint32_t found : {kernels::kNoItem, 0u}) {
        std::vector<StepCase> wanted(1, StepCase(rule, codec, DType::kBF16, DType::kBF16, 3, 700, rng));
        wanted[0].set_master(any_master(rng), rng);
        const StepCase start = wanted[0];
        step_all(*cpu, wanted, 1);
        const bool stopped = found != kernels::kNoItem;
        GuardedBytes param(start.param.data(), start.param.size()), grad(start.grad.data(), start.grad.size());
        const std::vector<std::byte> nans(start.grad.size(), std::byte{0xff});
        GuardedBytes searched(stopped ? nans.data() : start.grad.data(), nans.size());
        StepItem search = wanted[0].item();
        search.param = param.data(), search.grad = searched.data();
        std::shared_ptr<Guard> guard = device.backend->queue_guard({&search, 1}, device.queue);
        if (!guard) guard = std::make_shared<FixedGuard>(found);
        std::vector<TwoPlaces> codes, scales;
        TwoPlaces residual(start.residual);
        StepItem item = wanted[0].item();
        item.param = param.data(), item.grad = grad.data();
        item.write_offset = TwoPlaces::kDistance, item.guard = own_guard(guard.get());
        item.master.residual = residual.data();
        for (size_t k = 0; k < kMaxStates; ++k) {
          item.codes[k] = codes.emplace_back(start.codes[k]).data();
          item.scales[k] = reinterpret_cast<float*>(scales.emplace_back(start.scales[k]).data());
        }
        device.backend->step({&item, 1}, 1, false, device.queue);
        EXPECT_EQ(guard->first(), stopped ? 0 : -1);
        StepCase got = start;
        param.get(got.param.data());
        const StepCase& expected = stopped ? start : wanted[0];
        differing += differing_bytes(got.param.data(), expected.param.data(), int64_t(got.param.size()));
        differing += residual.differing(stopped ? std::vector<std::byte>() : wanted[0].residual);
        for (size_t k = 0; k < kMaxStates; ++k) {
          differing += codes[k].differing(stopped ? std::vector<std::byte>() : wanted[0].codes[k]);
          differing += scales[k].differing(stopped ? std::vector<float>() : wanted[0].scales[k]);
        }
        ++steps;
      }
  EXPECT_EQ(differing, 0);
  figure("{} steps, half of them stopped, {} bytes differ", steps, differing);
}

// One call takes items of all rules, codecs and types in random order; more than one upload can be in flight.
TEST(DeviceSteps, OneCallTakesItemsOfAllKinds) {
  LT_NEEDS_DEVICE();
  auto rng = seeded("mixed", 32);
  std::vector<StepCase> wanted;
  for (int i = 0; i < std::max(120, share_of(600)); ++i) {
    wanted.emplace_back(any_rule(rng), static_cast<int>(rng.below(codec_count())), static_cast<DType>(rng.below(3)),
                        static_cast<DType>(rng.below(3)), rng.between(1, 3), rng.between(1, 700), rng);
    wanted.back().set_master(any_master(rng), rng);
  }
  std::vector<StepCase> got = wanted;
  step_on_cpu(wanted, 7, 5);
  // Runs on the caller's queue without waiting between steps, because the gradients stay.
  TestDevice& device = TestDevice::get();
  std::vector<DeviceCase> on_device;
  for (StepCase& c : got) on_device.emplace_back(c);
  for (int step = 0; step < 7; ++step) {
    new_step(got, step, 5);
    std::vector<StepItem> items;
    for (DeviceCase& c : on_device) items.push_back(c.item());
    device.backend->step(items, 1, false, device.queue);
  }
  for (DeviceCase& c : on_device) c.fetch();
  int64_t differing = 0;
  for (size_t i = 0; i < got.size(); ++i) differing += differing_bytes(got[i], wanted[i]);
  EXPECT_EQ(differing, 0);
  figure("{} items a call, 7 calls, {} bytes differ", got.size(), differing);
}

// Parameter and gradient are views with separate strides.
TEST(DeviceSteps, TakeStridedTensors) {
  LT_NEEDS_DEVICE();
  // Either rule moves values of any type by its first step.
  const int lion = find_rule("lion"), rule = is_tested(lion) ? lion : effective_rule(find_rule("sgd"), {});
  auto rng = seeded("strides", 34);
  TestDevice& device = TestDevice::get();
  int64_t views = 0, bytes = 0, differing = 0, moved = 0;
  for (int pair = 0; pair < kPairs; ++pair)
    for (int round = 0; round < 6; ++round, ++views) {
      const int64_t sizes[] = {rng.between(2, 5), rng.between(2, 20), rng.between(2, 30)};
      const auto view = [&] {  // dims in random order, with gaps between elements
        std::vector<int64_t> strides(3);
        int64_t stride = rng.between(1, 3);
        for (const size_t d : rng.permutation(3)) strides[d] = stride, stride *= sizes[d] + rng.below(3);
        return Layout::make(sizes, strides);
      };
      const Layout p = view(), g = view();
      const auto p_type = static_cast<DType>(pair / 3), g_type = static_cast<DType>(pair % 3);
      StepCase wanted(rule, find_codec("dynamic8"), p_type, g_type, sizes[0], sizes[1] * sizes[2], rng);
      const auto values = [&](DType type, int64_t n) {
        std::vector<std::byte> data(static_cast<size_t>(n * dtype_bytes(type)));
        for (int64_t i = 0; i < n; ++i) put(data, type, i, rng.over_binades(-8, 2));
        return data;
      };
      wanted.set_master(round % 4, rng);
      wanted.param = values(p_type, p.extent), wanted.grad = values(g_type, g.extent);
      const std::vector<std::byte> before = wanted.param;
      StepCase got = wanted;
      StepItem item = wanted.item();
      item.param_layout = &p, item.grad_layout = &g;
      open_backend("cpu", "")->step({&item, 1}, 1, false, nullptr);
      DeviceCase on_device(got);
      item = on_device.item();
      item.param_layout = &p, item.grad_layout = &g;
      device.backend->step({&item, 1}, 1, false, device.queue);
      on_device.fetch();
      differing += differing_bytes(got, wanted), bytes += got.bytes();
      moved += differing_bytes(got.param.data(), before.data(), static_cast<int64_t>(before.size())) > 0;
    }
  EXPECT_EQ(differing, 0);
  EXPECT_EQ(moved, views) << "control: steps must change something";
  figure("{} views, {} bytes, {} differ", views, bytes, differing);
}

// Items that share a parameter run in the given order.
TEST(DeviceSteps, OrderedItemsRunOneAfterAnother) {
  LT_NEEDS_DEVICE();
  auto rng = seeded("ordered", 35);
  TestDevice& device = TestDevice::get();
  int64_t differing = 0, reversed = 0;
  for (int round = 0; round < 20; ++round) {
    StepCase a(find_rule("adamw"), 0, DType::kF32, DType::kF32, 3, 400, rng);
    StepCase b(tested_rules().back(), 2, DType::kF32, DType::kF32, 3, 400, rng);
    StepCase wanted_a = a, wanted_b = b, other_a = a, other_b = b;
    const auto both = [&](StepItem x, StepItem y) {
      y.param = x.param;
      return std::vector<StepItem>{x, y, x};
    };
    const auto cpu = open_backend("cpu", "");
    cpu->step(both(wanted_a.item(), wanted_b.item()), 2, true, nullptr);
    std::vector<StepItem> backwards = both(other_a.item(), other_b.item());
    std::swap(backwards[0], backwards[1]);
    cpu->step(backwards, 2, true, nullptr);
    DeviceCase on_a(a), on_b(b);
    device.backend->step(both(on_a.item(), on_b.item()), 1, true, device.queue);
    on_a.fetch(), on_b.fetch();
    differing += differing_bytes(a, wanted_a);
    reversed += differing_bytes(other_a, wanted_a);
  }
  EXPECT_EQ(differing, 0);
  EXPECT_GT(reversed, 0) << "control: the order matters";
  figure("20 rounds of 3 items, {} bytes differ (another order: {})", differing, reversed);
}

}  // namespace
}  // namespace lowtide::testing
