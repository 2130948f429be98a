// A step on a device gives the bits of a step on the CPU: every rule, codec and pair of element types, with all options
// of an item together, at random, and with gradients that are not finite.
#include "backend/kernels/items.h"
#include "backend/plugin_backend.h"
#include "device/device_support.h"
#include "support/test.h"

namespace lowtide::testing {
namespace {

constexpr int kPairs = 9;

int codec_count() { return static_cast<int>(codecs().size()); }

int any_master(Rng& rng) { return static_cast<int>(rng.below(std::ssize(masters()))); }

// Returns cases of shapes (rows, row length): empty, one element, short tails, whole blocks, and random ones.
std::vector<StepCase> make_cases(int rule, int codec, int pair, Rng& rng) {
  std::vector<std::pair<int64_t, int64_t>> shapes = {{0, 5}, {3, 0}, {1, 1}, {2, 256}, {3, 512}, {1, 256 * 20 + 77}};
  shapes.emplace_back(1, rng.between(1, 255));
  shapes.emplace_back(rng.between(2, 40), rng.between(1, 255));
  shapes.emplace_back(rng.between(2, 5), rng.between(257, 1200));
  std::vector<StepCase> cases;
  for (const auto& [rows, length] : shapes) {
    StepCase& made =
        cases.emplace_back(rule, codec, static_cast<DType>(pair / 3), static_cast<DType>(pair % 3), rows, length, rng);
    made.set_master(any_master(rng), rng);
    // A shard of columns: indices jump between rows, and within rows carry into the upper half of 64 bits.
    if (rng.chance(0.2)) {
      made.origin.row_stride = (made.layout.row_length + 4 * kBlockElements) / kBlockElements * kBlockElements;
      made.origin.first_column = (int64_t{1} << 32) - kBlockElements;
    }
  }
  return cases;
}

void new_step(std::vector<StepCase>& cases, int step, uint64_t seed) {
  Rng rng(seed + static_cast<uint64_t>(step));
  for (StepCase& c : cases) {
    c.new_gradients(rng);
    c.set_step(step + 1, step == 0);
  }
}

void step_on_cpu(std::vector<StepCase>& cases, int steps, uint64_t seed) {
  const auto cpu = open_backend("cpu", "");
  for (int step = 0; step < steps; ++step) {
    new_step(cases, step, seed);
    step_all(*cpu, cases, 1);
  }
}

// On the queue without waiting between steps, because the gradients stay.
void step_on_device(std::vector<StepCase>& cases, int steps, uint64_t seed) {
  TestDevice& device = TestDevice::get();
  std::vector<DeviceCase> there;
  for (StepCase& c : cases) there.emplace_back(c);
  for (int step = 0; step < steps; ++step) {
    new_step(cases, step, seed);
    std::vector<StepItem> items;
    for (DeviceCase& c : there) items.push_back(c.item());
    device.backend->step(items, 1, false, device.queue);
  }
  for (DeviceCase& c : there) c.fetch();
}

struct Tally {
  int64_t cases = 0, parts = 0, views = 0, scaled = 0, masters = 0;
  int64_t bytes = 0, differing = 0, nans = 0, still = 0;
};

// The same rows in other memory: dims in random order, with gaps between elements.
Layout random_view(const Layout& of, Rng& rng) {
  const int64_t halves = of.row_length % 2 ? 1 : 2, sizes[] = {of.rows, halves, of.row_length / halves};
  std::vector<int64_t> strides(3);
  int64_t stride = rng.between(1, 3);
  for (const size_t d : rng.permutation(3)) strides[d] = stride, stride *= sizes[d] + rng.below(3);
  return Layout::make(sizes, strides);
}

// Options of an item that a case does not have: a scale of gradients, a part, and views.
struct Extras {
  float grad_scale;
  int64_t first_block = 0, blocks = -1;
  Layout param, grad;

  // Gives the case room for its view.
  Extras(StepCase& c, Rng& rng, Tally& tally) : param(c.layout), grad(c.layout) {
    grad_scale = rng.chance(0.5) ? 1.f : static_cast<float>(rng.over_binades(-10, 3));
    const int64_t all = c.layout.blocks(kBlockElements);
    if (all > 1 && rng.chance(0.5)) {
      first_block = rng.below(all);
      blocks = rng.chance(0.3) ? -1 : rng.between(0, all - first_block);
      ++tally.parts;
    }
    if (c.layout.numel && rng.chance(0.5)) {
      param = random_view(c.layout, rng);
      c.param.resize(static_cast<size_t>(param.extent * dtype_bytes(c.param_dtype)));
      for (int64_t i = 0; i < param.extent; ++i) put(c.param, c.param_dtype, i, rng.over_binades(-8, 3));
      // The gradient is a transposed view, or one gradient for all rows.
      const int64_t sizes[] = {c.layout.rows, c.layout.row_length};
      const int64_t strides[] = {rng.chance(0.3) ? 0 : 1, c.layout.rows};
      grad = Layout::make(sizes, strides);
      ++tally.views;
    }
    tally.scaled += grad_scale != 1, tally.masters += c.master > 0;
  }

  StepItem set(StepItem item) const {
    item.grad_scale = grad_scale;
    item.param_layout = &param, item.grad_layout = &grad;
    item.first_block = first_block, item.blocks = blocks;
    const int64_t begin = elements_before_block(param.row_length, first_block, kBlockElements);
    const auto advance = [](void*& data, int64_t bytes) {
      if (data) data = static_cast<std::byte*>(data) + bytes;
    };
    for (int k = 0; k < kMaxStates; ++k) {
      const StateFormat& format = format_of(item.rule, item.codec, k);
      advance(item.codes[k], format.code_bytes(begin));
      if (item.scales[k]) item.scales[k] += first_block * format.scales;
    }
    advance(item.master.residual, residual_bytes(item.master.kind, begin));
    return item;
  }
};

// Adds no NaN if states have scales: even the CPU's targets disagree on the codes of a block with a NaN.
void spoil(StepCase& c, Rng& rng) {
  const bool scaled = codec_info(c.codec).scaled;
  const int kinds = scaled ? 3 : 4;
  // RMSprop's momentum, Schedule-Free's z - y and Prodigy's p - p0 turn infinity / infinity into a NaN.
  const std::string rule = rule_info(c.rule).name;
  const bool divides = scaled && (rule == "schedulefree" || rule == "prodigy" ||
                                  (rule.find("rmsprop") == 0 && rule.find("momentum") != std::string::npos));
  const double bad[] = {std::numeric_limits<double>::infinity(), -std::numeric_limits<double>::infinity(), 0x1p100,
                        std::nan("")};
  for (int64_t n = c.layout.numel ? 1 + c.layout.numel / 100 : 0; n > 0; --n)
    put(c.grad, c.grad_dtype, rng.below(c.layout.numel),
        divides ? (c.grad_dtype == DType::kF16 ? 6e4 : 0x1p100) : bad[rng.below(kinds)]);
}

// Returns the bytes of a parameter that differ. Any two NaNs are equal: their payload and sign are undefined.
int64_t differing_numbers(const StepCase& a, const StepCase& b, int64_t& nans) {
  int64_t bad = 0;
  const auto compare = [&](const void* x, const void* y, DType type, size_t bytes) {
    const int64_t size = dtype_bytes(type), n = static_cast<int64_t>(bytes) / size;
    for (int64_t i = 0; i < n; ++i) {
      const bool both = std::isnan(element(x, type, i)) && std::isnan(element(y, type, i));
      nans += both;
      if (!both)
        bad += differing_bytes(static_cast<const char*>(x) + i * size, static_cast<const char*>(y) + i * size, size);
    }
  };
  compare(a.param.data(), b.param.data(), a.param_dtype, a.param.size());
  const CodecInfo& codec = codec_info(a.codec);
  for (int k = 0; k < kMaxStates; ++k) {
    if (codec.scaled)
      bad += differing_bytes(a.codes[k].data(), b.codes[k].data(), static_cast<int64_t>(a.codes[k].size()));
    else
      compare(a.codes[k].data(), b.codes[k].data(), codec.format[1].code_bits == 32 ? DType::kF32 : DType::kBF16,
              a.codes[k].size());
    compare(a.scales[k].data(), b.scales[k].data(), DType::kF32, a.scales[k].size() * sizeof(float));
  }
  return bad;
}

void compare_steps(bool finite, uint64_t seed, const char* name) {
  auto rng = seeded(name, seed);
  TestDevice& device = TestDevice::get();
  const auto cpu = open_backend("cpu", "");
  const int steps = finite ? 3 : 1;
  Tally tally;
  int64_t grid = 0;
  for (const int rule : tested_rules())
    for (int codec = 0; codec < codec_count(); ++codec)
      for (int pair = 0; pair < kPairs; ++pair) {
        if (!in_share(grid++)) continue;
        std::vector<StepCase> wanted = make_cases(rule, codec, pair, rng);
        std::deque<Extras> extras;  // items point to their layouts
        for (StepCase& c : wanted) {
          if (!finite) c.set_master(0, rng);  // weights with residuals would differ in the bits of their NaNs
          extras.emplace_back(c, rng, tally);
        }
        std::vector<StepCase> got = wanted;
        const std::vector<StepCase> start = wanted;
        std::vector<DeviceCase> there;
        for (StepCase& c : got) there.emplace_back(c);
        const uint64_t of_steps = rng.next();
        for (int step = 0; step < steps; ++step) {
          std::vector<StepItem> on_cpu, on_device;
          new_step(wanted, step, of_steps), new_step(got, step, of_steps);
          for (size_t i = 0; i < got.size(); ++i) {
            if (!finite) {
              Rng again(of_steps + i);
              spoil(wanted[i], again);
              got[i].grad = wanted[i].grad;
            }
            on_cpu.push_back(extras[i].set(wanted[i].item())), on_device.push_back(extras[i].set(there[i].item()));
          }
          cpu->step(on_cpu, 1, false, nullptr);
          device.backend->step(on_device, 1, false, device.queue);
          device.wait();
        }
        for (size_t i = 0; i < got.size(); ++i, ++tally.cases) {
          there[i].fetch();
          const int64_t bad =
              finite ? differing_bytes(got[i], wanted[i]) : differing_numbers(got[i], wanted[i], tally.nans);
          if (bad)
            ADD_FAILURE() << rule_info(rule).name << " " << codec_info(codec).name << " pair " << pair << " case " << i
                          << ", part " << extras[i].first_block << " + " << extras[i].blocks << ", scale "
                          << extras[i].grad_scale << ", " << master_info(got[i].master).name << ": " << bad << " bytes";
          tally.differing += bad, tally.bytes += got[i].bytes();
          tally.still += got[i].layout.numel > 256 && extras[i].blocks != 0 && differing_bytes(got[i], start[i]) == 0;
        }
      }
  EXPECT_EQ(tally.differing, 0);
  EXPECT_LE(tally.still, tally.cases / 100) << "control: steps must change something";
  EXPECT_EQ(tally.nans > 0, !finite) << "control";
  figure(
      "{} cases ({} parts, {} views, {} scaled, {} with a master) after {} steps: {} bytes, {} differ; {} NaN on both "
      "sides; {} guards whole",
      tally.cases, tally.parts, tally.views, tally.scaled, tally.masters, steps, tally.bytes, tally.differing,
      tally.nans, GuardedBytes::guards_checked);
}

TEST(DeviceSteps, GiveTheBitsOfTheCpu) {
  LT_NEEDS_DEVICE();
  compare_steps(true, 30, "steps");
}

TEST(DeviceSteps, GiveTheNumbersOfTheCpuWhereGradientsAreNotFinite) {
  LT_NEEDS_DEVICE();
  compare_steps(false, 51, "not finite steps");
}

// Control: the comparison catches a learning rate that is one float off.
TEST(DeviceSteps, ComparisonSeesTheSmallestDifference) {
  LT_NEEDS_DEVICE();
  auto rng = seeded("control", 31);
  std::vector<StepCase> wanted = make_cases(find_rule("adamw"), 0, 0, rng), got = wanted;
  for (StepCase& c : got) c.lr = static_cast<double>(std::nextafter(static_cast<float>(c.lr), 1.f));
  step_on_cpu(wanted, 1, 1);
  step_on_device(got, 1, 1);
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
  step_on_device(got, 7, 5);
  int64_t differing = 0;
  for (size_t i = 0; i < got.size(); ++i) differing += differing_bytes(got[i], wanted[i]);
  EXPECT_EQ(differing, 0);
  figure("{} items a call, 7 calls, {} bytes differ", got.size(), differing);
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
