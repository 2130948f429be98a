// Claim: forecast() predicts, to the byte, what report() says after the first step.
#include "lowtide/planning.h"

#include "backend/catalog.h"

#include "support/device_twins.h"
#include "support/fake/fake_backend.h"
#include "support/optimizer_case.h"
#include "support/scratch_support.h"
#include "support/test.h"

namespace lowtide::testing {
namespace {

using Budget = lowtide::Memory;

std::vector<int64_t> planned_sizes(Rng& rng) {
  switch (rng.below(7)) {
    case 0:
      return {rng.between(1, 5), rng.between(1, 3000)};
    case 1:
      return {rng.between(1, 400), 256};
    case 2:
      return {};
    case 3:
      return {rng.between(0, 3), rng.between(1, 300), 2};
    case 4:
      return {rng.between(1, 3000), 1};
    case 5:
      return {rng.between(1, 600), 1024};
    default:
      return {rng.between(1, 200000)};
  }
}

Budget random_budget(Rng& rng, const std::string& disk) {
  if (rng.chance(0.2)) return {};
  Budget memory{.host = int64_t{1} << rng.between(10, 24)};
  memory.host += rng.below(memory.host);
  if (rng.chance(0.85)) memory.disk = disk;
  if (rng.chance(0.2)) memory.disk_limit = rng.below(8 << 20);
  if (rng.chance(0.4)) memory.chunk = 4096 * rng.between(1, 64);
  return memory;
}

// Its steps read states twice, if a budget has no other rule.
bool has_norms(const std::string& rule) { return rule_info(find_rule(rule)).norms || rule_info(find_rule(rule)).sums; }

ForecastRequest random_request(Rng& rng, const std::string& disk) {
  ForecastRequest request;
  const auto rules = rule_names();
  const auto codecs = codec_names();
  request.options.rule = rules[static_cast<size_t>(rng.below(static_cast<int64_t>(rules.size())))];
  request.options.threads = 1;
  request.options.nonfinite = NonFinite::kPropagate;
  request.options.memory = random_budget(rng, disk);
  const int64_t groups = rng.between(1, 3);
  for (int64_t g = 0; g < groups; ++g) {
    PlannedGroup& group = request.groups.emplace_back();
    group.options.state = codecs[static_cast<size_t>(rng.below(static_cast<int64_t>(codecs.size())))];
    group.options.min_quantized_numel = rng.chance(0.5) ? 4096 : 0;
    // A plan assumes norms for a whole budget if any of its rules has them, so the two kinds are not mixed.
    const bool other_rule = rng.chance(0.2) && !has_norms(request.options.rule);
    if (other_rule) do
        group.options.rule = rules[static_cast<size_t>(rng.below(static_cast<int64_t>(rules.size())))];
      while (has_norms(group.options.rule));
    const std::string& rule = other_rule ? group.options.rule : request.options.rule;
    group.options.hyper = random_variant(rule, rng);
    if (rule == "sgd" && rng.chance(0.3)) group.options.hyper.momentum = 0;
    // Nor are norms that read states mixed with norms that do not.
    if (has_norms(rule)) group.options.hyper.max_unorm = request.groups[0].options.hyper.max_unorm;
    const auto states = codec_names_of(rule, group.options.hyper);
    if (std::find(states.begin(), states.end(), group.options.state) == states.end()) group.options.state = "dynamic8";
    if (rng.chance(0.3))
      group.options.memory = random_budget(rng, disk);
    else if (g > 0 && rng.chance(0.3))
      group.options.budget_of = static_cast<int>(rng.below(g));
    const int64_t count = rng.between(0, 10);
    for (int64_t i = 0; i < count; ++i) group.params.push_back({planned_sizes(rng)});
  }
  if (rng.chance(0.5)) return request;
  for (PlannedGroup& group : request.groups)
    for (PlannedParam& param : group.params) param.number = static_cast<int64_t>(rng.next() >> 1);
  return request;
}

// Adds the groups. Returns their parameters with the numbers of their groups, in the order in which to add them.
std::vector<std::pair<int, const PlannedParam*>> add_groups(Optimizer& optimizer, const ForecastRequest& request) {
  std::vector<std::pair<int, const PlannedParam*>> planned;
  for (const PlannedGroup& group : request.groups) {
    const int number = optimizer.add_group(group.options);
    for (const PlannedParam& param : group.params) planned.emplace_back(number, &param);
  }
  std::ranges::stable_sort(planned, {}, [](const auto& each) { return each.second->number; });
  return planned;
}

// The report after one step of such an optimizer, whose parameters and gradients each lie in one piece of memory.
MemoryReport report_of(const ForecastRequest& request) {
  Optimizer optimizer(request.options);
  const auto planned = add_groups(optimizer, request);
  std::vector<Tensor> params;
  for (const auto& [group, param] : planned) params.emplace_back(DType::kBF16, param->sizes);
  std::vector<Gradient> gradients;
  for (size_t i = 0; i < planned.size(); ++i) {
    optimizer.add_param(planned[i].first, params[i].view());
    gradients.push_back(params[i].gradient());  // an empty tensor has none: its data are null
  }
  optimizer.step(gradients);
  return optimizer.report();
}

TEST(Planning, BytesAreThoseOfTheReport) {
  Rng rng = seeded("planned against reported", 20261121);
  const TemporaryDirectory directory;
  constexpr int kCases = 600;
  int64_t fits = 0, refused = 0, on_disk = 0, params = 0, most_off = 0, state = 0;
  for (int i = 0; i < kCases; ++i) {
    SCOPED_TRACE(i);
    const ForecastRequest request = random_request(rng, directory.path());
    const Forecasts plan = forecast(request);
    if (!plan.total.fits) {
      ++refused;
      const auto planned = error_of([&] { plan.require_fit(); });
      ASSERT_TRUE(planned);
      EXPECT_EQ(planned->kind(), ErrorKind::kInvalidArgument);
      const auto real = error_of([&] { report_of(request); });
      ASSERT_TRUE(real) << "predicted: " << plan.total.problem;
      EXPECT_EQ(real->kind(), ErrorKind::kInvalidArgument);
      expect_in("at least", plan.total.problem);
      if (plan.budgets.size() == 1) {
        EXPECT_STREQ(real->what(), plan.total.problem.c_str());
      }
      continue;
    }
    ++fits;
    const MemoryReport report = report_of(request);
    const Forecast& total = plan.total;
    const int64_t off[] = {total.params - report.params,
                           total.elements - report.elements,
                           total.state_bytes - report.state_bytes,
                           total.host_bytes - report.allocated_bytes,
                           total.disk_bytes - report.disk_bytes,
                           total.chunks - report.chunks,
                           total.moved_per_step - report.moved_per_step};
    for (const int64_t n : off) most_off = std::max(most_off, std::abs(n));
    EXPECT_EQ(total.moved_per_step, report.read_bytes + report.written_bytes);  // of one step
    for (const Forecast& budget : plan.budgets) EXPECT_TRUE(budget.fits);
    on_disk += total.disk_bytes > 0;
    params += total.params;
    state += total.state_bytes;
  }
  EXPECT_EQ(most_off, 0);
  EXPECT_GT(on_disk, kCases / 10);
  EXPECT_GT(refused, kCases / 20);
  figure(
      "planned against reported: {} of {} random optimizers fit ({} with state on disk, {} parameters, {} bytes of "
      "state): parameters, elements, state, RAM, disk, chunks and traffic off by {} at most; {} are refused, all by "
      "the optimizer too",
      fits, kCases, on_disk, params, state, most_off, refused);
}

// The report after a step on a late device.
MemoryReport report_on_device(const ForecastRequest& request, uint64_t seed) {
  auto fake = std::make_unique<fake::FakeBackend>(fake::FakeBackendOptions{.seed = seed, .steps_pinned = true});
  Device& device = *fake;
  Optimizer optimizer = OptimizerEnv::make(request.options, system_env(), std::move(fake));
  void* const queue = device.make_queue();
  DeviceTensors tensors(device, queue);
  std::vector<Gradient> gradients;
  for (const auto& [group, param] : add_groups(optimizer, request)) {
    const Tensor tensor(DType::kBF16, param->sizes);
    optimizer.add_param(group, {tensors.put(tensor), DType::kBF16, param->sizes, {}});
    gradients.push_back({tensors.put(tensor), DType::kBF16, nullptr});
  }
  StepOptions on_queue{.stream = queue};
  optimizer.step(gradients, on_queue);
  optimizer.synchronize();
  return optimizer.report();
}

TEST(Planning, BytesOnADeviceAreThoseOfTheReport) {
  Rng rng = seeded("plans of a device", 20261124);
  constexpr int kCases = 400;
  const TemporaryDirectory directory;
  int64_t streams = 0, on_disk = 0, refused = 0, most_off = 0, moved = 0;
  for (int i = 0; i < kCases; ++i) {
    SCOPED_TRACE(i);
    ForecastRequest request = random_request(rng, "");
    for (PlannedGroup& group : request.groups) {
      group.options.memory.reset(), group.options.budget_of = -1;
      std::erase_if(group.params, [](const PlannedParam& param) {
        return std::find(param.sizes.begin(), param.sizes.end(), 0) != param.sizes.end();
      });
    }
    Budget memory{.device = int64_t{1} << rng.between(12, 22)};
    memory.device += rng.below(memory.device);
    if (rng.chance(0.5)) memory.host = int64_t{1} << rng.between(14, 22);
    if (rng.chance(0.5)) memory.chunk = 4096 * rng.between(1, 16);
    memory.transfer = rng.chance(0.3) ? "zero_copy" : "copy";
    if (memory.host >= 0 && memory.transfer == "copy" && rng.chance(0.7)) {
      memory.disk = directory.path();
      if (rng.chance(0.2)) memory.disk_limit = int64_t{1} << rng.between(14, 23);
    }
    request.options.memory = memory;
    const Forecast plan = forecast(request).total;
    const auto seed = static_cast<uint64_t>(i);
    if (!plan.fits) {
      ++refused;
      const auto real = error_of([&] { report_on_device(request, seed); });
      ASSERT_TRUE(real) << "predicted: " << plan.problem;
      EXPECT_STREQ(real->what(), plan.problem.c_str());
      continue;
    }
    const MemoryReport report = report_on_device(request, seed);
    for (const int64_t off : {plan.state_bytes - report.state_bytes, plan.device_bytes - report.device_bytes,
                              plan.host_bytes - report.allocated_bytes, plan.chunks - report.chunks,
                              plan.moved_per_step - report.moved_per_step, plan.disk_bytes - report.disk_bytes,
                              plan.disk_moved_per_step - report.disk_moved_per_step})
      most_off = std::max(most_off, std::abs(off));
    streams += plan.moved_per_step > 0, moved += plan.moved_per_step, on_disk += plan.disk_bytes > 0;
  }
  EXPECT_EQ(most_off, 0);
  EXPECT_GT(streams, kCases / 5);
  EXPECT_GT(on_disk, kCases / 40);
  EXPECT_GT(refused, kCases / 50);
  figure(
      "{} budgets of a device: state streams under {}, from a disk under {}, {} bytes a step; {} are refused in the "
      "same words; bytes, chunks and traffic off by {} at most",
      kCases, streams, on_disk, moved, refused, most_off);
}

// The bytes that a refusal asks for suffice, and one page less does not.
TEST(Planning, ARefusalSaysHowMuchIsNeeded) {
  ForecastRequest request;
  PlannedGroup& group = request.groups.emplace_back();
  group.params = {PlannedParam{{1000, 1000}}, PlannedParam{{64}}};
  request.options.memory.host = 1 << 20;
  const std::string problem = forecast(request).total.problem;
  const size_t at = problem.find("at least ");
  ASSERT_NE(at, std::string::npos) << problem;
  const int64_t needed = std::stoll(problem.substr(at + 9));
  request.options.memory.host = needed;
  EXPECT_TRUE(forecast(request).total.fits);
  EXPECT_LE(forecast(request).total.host_bytes, needed);
  figure("1 MiB for {} bytes of state: \"{}\"; with exactly that it fits", forecast(request).total.state_bytes,
         problem);
}

// Models too large for any test to allocate.
TEST(Planning, LargeModelsTakeNoMemory) {
  ForecastRequest request;
  PlannedGroup& group = request.groups.emplace_back();
  group.params.assign(1000, PlannedParam{{32768, 32768}});
  request.options.memory.host = int64_t{64} << 30;
  request.options.memory.disk = "/nowhere";
  const Forecast total = forecast(request).total;
  EXPECT_EQ(total.elements, int64_t{1000} << 30);
  EXPECT_TRUE(total.fits);
  EXPECT_LE(total.host_bytes, int64_t{64} << 30);
  EXPECT_NEAR(static_cast<double>(total.host_bytes + total.disk_bytes), static_cast<double>(total.state_bytes), 8e9);
  figure("1000 Gi elements: {} bytes of state, {} chunks", total.state_bytes, total.chunks);
}

TEST(Planning, SecondsFollowTheRates) {
  ForecastRequest request;
  PlannedGroup& group = request.groups.emplace_back();
  group.params.assign(8, PlannedParam{{4096, 4096}});
  EXPECT_EQ(forecast(request).total.seconds, 0);  // unknown
  group.step_rate = 1e9;
  Forecast total = forecast(request).total;
  const double step = static_cast<double>(total.state_bytes) / 1e9;
  EXPECT_NEAR(total.seconds, step, step * 1e-4);
  EXPECT_EQ(total.disk_seconds, 0);
  request.options.memory = {64 << 20, "/nowhere", -1, 0};
  EXPECT_EQ(forecast(request).total.seconds, 0);  // the disk's rates are unknown
  EXPECT_NEAR(forecast(request).total.step_seconds, step, step * 0.02);
  request.read_rate = 2e9;
  request.write_rate = 1e9;
  total = forecast(request).total;
  const double disk = static_cast<double>(total.disk_bytes) * (1 / 2e9 + 1 / 1e9);
  EXPECT_NEAR(total.disk_seconds, disk, disk * 1e-9);
  EXPECT_EQ(total.seconds, std::max(total.step_seconds, total.disk_seconds));
  // Two formats under one budget: each has its own rate.
  request.options.memory = {};
  PlannedGroup other = request.groups[0];
  other.options.state = "fp32";
  other.step_rate = 4e9;
  request.groups.push_back(other);
  total = forecast(request).total;
  const double both = step + 8.0 * 8 * 4096 * 4096 / 4e9;
  EXPECT_NEAR(total.seconds, both, both * 1e-4);
  figure("seconds: step {}, disk {}, two formats {}", step, disk, total.seconds);
}

TEST(Planning, BadRequestsAreRefused) {
  const auto refuses = [](const std::string& part, const auto& change) {
    ForecastRequest request;
    request.groups.emplace_back().params = {PlannedParam{{8, 8}}};
    change(request);
    expect_refusal([&] { forecast(request); }, part);
  };
  const double nan = std::numeric_limits<double>::quiet_NaN();
  int cases = 0;
  const auto with = [&](const std::string& part, const auto& change) { ++cases, refuses(part, change); };
  with("adamw", [](ForecastRequest& r) { r.options.rule = "adamax"; });
  with("dynamic8", [](ForecastRequest& r) { r.groups[0].options.state = "int3"; });
  with("min_quantized_numel=-1", [](ForecastRequest& r) { r.groups[0].options.min_quantized_numel = -1; });
  with("momentum", [&](ForecastRequest& r) { r.groups[0].options.hyper.momentum = nan; });
  with("size of -4", [](ForecastRequest& r) { r.groups[0].params[0].sizes = {-4}; });
  with("2^62", [](ForecastRequest& r) { r.groups[0].params[0].sizes = {int64_t{1} << 40, int64_t{1} << 40}; });
  with("2^52", [](ForecastRequest& r) { r.groups[0].params[0].sizes = {int64_t{1} << 61}; });
  with("2^52", [](ForecastRequest& r) { r.groups[0].params.assign(2, PlannedParam{{int64_t{1} << 52}}); });
  with("step_rate=nan", [&](ForecastRequest& r) { r.groups[0].step_rate = nan; });
  with("read_rate=-1", [](ForecastRequest& r) { r.read_rate = -1; });
  with("write_rate=inf", [](ForecastRequest& r) { r.write_rate = std::numeric_limits<double>::infinity(); });
  with("host=-2", [](ForecastRequest& r) { r.options.memory.host = -2; });
  with("link_rate=-1", [](ForecastRequest& r) { r.link_rate = -1; });
  with("chunk=5", [](ForecastRequest& r) { r.groups[0].options.memory = Budget{1 << 20, "", -1, 5}; });
  with("without a limit of host memory", [](ForecastRequest& r) { r.options.memory.disk = "/nowhere"; });
  // Valid but too large to fit, which forecast() reports separately.
  ForecastRequest small;
  small.groups.emplace_back().params = {PlannedParam{{int64_t{1} << 20, int64_t{1} << 20}}};
  small.options.memory = {1 << 20, "/nowhere", -1, 4096};
  EXPECT_FALSE(forecast(small).total.fits);
  expect_in("chunks", forecast(small).total.problem);
  const Forecasts empty = forecast(ForecastRequest());
  EXPECT_TRUE(empty.total.fits);
  EXPECT_EQ(empty.total.host_bytes, 0);
  figure("bad requests refused: {} of {}", cases, cases);
}

TEST(Rates, OfAStep) {
  StepMeasurement what;
  what.elements = 1 << 16;
  what.seconds = 0.01;
  what.threads = 1;
  for (const char* state : {"dynamic8", "fp32"}) {
    what.state = state;
    const double rate = measure_step_rate(what);
    EXPECT_GT(rate, 1e6);
    EXPECT_LT(rate, 1e13);
  }
  what.rule = "sgd";  // SGD without momentum has no state
  EXPECT_EQ(measure_step_rate(what), 0);
  for (const double bad : {0.0, -1.0, 61.0, std::numeric_limits<double>::quiet_NaN()}) {
    what.seconds = bad;
    expect_refusal([&] { measure_step_rate(what); }, "seconds");
  }
}

TEST(Rates, OfADirectoryLeaveNothingBehind) {
  const TemporaryDirectory directory;
  const DiskRates rates = measure_disk_rates(directory.path(), 32 << 20, 0.01);
  EXPECT_EQ(rates.bytes, 32 << 20);
  EXPECT_GT(rates.read, 1e5);
  EXPECT_GT(rates.write, 1e5);
  EXPECT_GT(rates.disk.free_bytes, 0);
  EXPECT_TRUE(directory.names().empty());
  const std::string file = directory.file("file"), link = directory.file("link");
  std::fclose(std::fopen(file.c_str(), "w"));
  std::filesystem::create_directory_symlink(directory.path(), link);
  for (const std::string& bad : {directory.file("missing"), file, link, std::string()}) {
    expect_refusal([&] { disk_info(bad); }, "director");
    expect_refusal([&] { measure_disk_rates(bad); }, "director");
  }
  EXPECT_EQ(error_of([&] { disk_info("/proc"); })->kind(), ErrorKind::kIo);  // nothing can be created there
  expect_refusal([&] { measure_disk_rates(directory.path(), 1); }, "16 MiB");
  expect_refusal([&] { measure_disk_rates(directory.path(), 16 << 20, -1); }, "seconds");
  EXPECT_EQ(directory.names().size(), 2u);
  figure("engine {}, direct {}", rates.disk.engine, rates.disk.direct);
}

}  // namespace
}  // namespace lowtide::testing
