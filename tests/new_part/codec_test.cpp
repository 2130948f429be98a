// Claim: the codec of docs/project/adding-a-codec.md, added as the page says, is there by its name, stores what its
// reference says, serves a rule's step, and gives the same bits on all instruction sets.

#include "backend/cpu/cpu_backend.h"
#include "backend/catalog.h"
#include "part.h"
#include "support/optimizer_case.h"
#include "support/plainest_target.h"

namespace lowtide::testing {
namespace {
#include "reference.inc"
#include "support/test.h"

constexpr int64_t kRows = 3, kRowLength = 302;  // two blocks in a row, the second one short

// values of a row, as they are once stored.
std::vector<double> stored(const std::vector<double>& values, bool is_signed) {
  std::vector<double> out;
  for (int64_t i = 0; i < static_cast<int64_t>(values.size()); ++i) {
    const int64_t first = i - i % kRowLength % kBlockElements, row_end = (i / kRowLength + 1) * kRowLength;
    double absmax = 0;
    for (int64_t j = first; j < std::min(first + kBlockElements, row_end); ++j)
      absmax = std::max(absmax, std::fabs(values[static_cast<size_t>(j)]));
    out.push_back(absmax > 0 ? linear8(values[static_cast<size_t>(i)], absmax, is_signed) : 0);
  }
  return out;
}

TEST(NewCodec, IsTwoFilesAndALineOfTheDocuments) {
  EXPECT_EQ(std::size(kPartFiles), 3u);
  const std::vector<std::string> names = codec_names();
  EXPECT_EQ(std::count(names.begin(), names.end(), "linear8"), 1);
  EXPECT_EQ(codec_info(find_codec("linear8")).format[0].code_bits, 8);
}

TEST(NewCodec, StoresWhatItsReferenceSays) {
  int compared = 0;
  for (const std::string& target : cpu_targets())
    for (const bool is_signed : {false, true}) {
      Rng rng(3);
      std::vector<float> values, got(static_cast<size_t>(kRows * kRowLength));
      for (size_t i = 0; i < got.size(); ++i) {
        const float x = i % 50 ? static_cast<float>(rng.normal()) : 0.f;
        values.push_back(is_signed ? x : x * x);
      }
      const std::vector<double> wanted = stored({values.begin(), values.end()}, is_signed);
      std::vector<uint8_t> codes(got.size());
      std::vector<float> scales(kRows * 2);
      CodecItem item{find_codec("linear8"), is_signed, kRows, kRowLength};
      item.codes = codes.data(), item.scales = scales.data(), item.values = values.data();
      const auto backend = cpu::make_backend(target);
      backend->encode(item, nullptr);
      item.values = got.data();
      backend->decode(item, nullptr);
      for (size_t i = 0; i < got.size(); ++i, ++compared)
        ASSERT_NEAR(got[i], wanted[i], 1e-5) << target << (is_signed ? " signed " : " unsigned ") << i;
    }
  figure("{} values as the reference has them", compared);
}

struct Outcome {
  Tensor param{DType::kF32, {kRows, kRowLength}};
  std::vector<std::byte> bytes;
};

// Calls each(gradient) before every step.
template <class Fn>
Outcome outcome_of(const std::string& rounding, const std::string& target, Fn&& each) {
  Config config;
  config.rule = "adagrad", config.state = "linear8", config.target = target, config.rounding = rounding;
  config.hyper = default_hyper(config.rule);
  Rng rng(7);
  Outcome out;
  out.param.randomize(rng);
  Optimizer optimizer = make_optimizer(config);
  optimizer.add_param(0, out.param.view());
  Tensor grad(DType::kF32, out.param.sizes);
  for (int step = 0; step < 5; ++step) {
    for (int64_t i = 0; i < grad.numel; ++i) grad.set(i, i % 9 ? rng.normal() : 0);
    each(grad);
    const Gradient gradient = grad.gradient();
    optimizer.step({&gradient, 1});
  }
  out.bytes = snapshot(optimizer, {&out.param});
  return out;
}

TEST(NewCodec, StepsAsAReferenceLoopDoes) {
  Rng rng(7);
  Tensor start(DType::kF32, {kRows, kRowLength});
  start.randomize(rng);
  std::vector<double> p, sum(static_cast<size_t>(start.numel));
  for (int64_t i = 0; i < start.numel; ++i) p.push_back(start.get(i));
  const double lr = default_hyper("adagrad").lr;
  const Outcome got = outcome_of("nearest", "", [&](const Tensor& grad) {
    for (size_t i = 0; i < p.size(); ++i) {
      const double g = grad.get(static_cast<int64_t>(i));
      sum[i] += g * g;
      if (g != 0) p[i] -= lr * g / std::sqrt(sum[i]);
    }
    sum = stored(sum, false);
  });
  double worst = 0;
  size_t moved = 0;
  for (size_t i = 0; i < p.size(); ++i) {
    worst = std::max(worst, std::fabs(got.param.get(static_cast<int64_t>(i)) - p[i]));
    moved += std::fabs(start.get(static_cast<int64_t>(i)) - p[i]) > 1e-4;
  }
  EXPECT_LT(worst, 1e-5);
  EXPECT_GT(moved, p.size() * 8 / 10) << "control: parameters move";
  figure("{} elements: off by {} at most", p.size(), worst);
}

TEST(NewCodec, GivesTheSameBitsOnAllInstructionSets) {
  for (const char* rounding : {"nearest", "stochastic"}) {
    const Outcome wanted = outcome_of(rounding, plainest_target(), [](const Tensor&) {});
    for (const std::string& target : cpu_targets())
      EXPECT_TRUE(outcome_of(rounding, target, [](const Tensor&) {}).bytes == wanted.bytes) << rounding << target;
  }
}

}  // namespace
}  // namespace lowtide::testing
