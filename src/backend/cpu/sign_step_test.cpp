// Compares the fused parts of training by signs on the CPU with their formulas, on every instruction set: ballots of
// steps, moves by signs, error feedback.
#include "backend/cpu/sign_kernels.h"

#include "backend/cpu/cpu_backend.h"
#include "lowtide/optimizer.h"
#include "support/feedback_reference.h"
#include "support/optimizer_case.h"
#include "support/sign_reference.h"
#include "support/step_case.h"
#include "support/test.h"

namespace lowtide::testing {
namespace {

int64_t differing(const Bits& a, const Bits& b) {
  return a.size() == b.size() ? differing_bytes(a.data(), b.data(), static_cast<int64_t>(a.size())) : -1;
}
int64_t rounded_up(int64_t n) { return (n + kSignAlignment - 1) / kSignAlignment * kSignAlignment; }

std::vector<std::unique_ptr<Backend>> all_targets() {
  std::vector<std::unique_ptr<Backend>> all;
  for (const std::string& target : cpu_targets()) all.push_back(cpu::make_backend(target));
  return all;
}

// A gradient with gaps between its rows.
struct StridedGradient {
  Layout layout;
  std::vector<std::byte> data;
  explicit StridedGradient(const StepCase& c) {
    const int64_t sizes[] = {c.layout.rows, c.layout.row_length}, strides[] = {c.layout.row_length + 3, 1};
    layout = Layout::make(sizes, strides);
    data.resize(static_cast<size_t>(layout.extent * dtype_bytes(c.grad_dtype)));
    layout.scatter(c.grad.data(), dtype_bytes(c.grad_dtype), 0, layout.numel, data.data());
  }
};

// Zeros the state and gradient of a fifth of the blocks.
void clear_blocks(StepCase& c, Rng& rng) {
  const int64_t per_row = (c.layout.row_length + kBlockElements - 1) / kBlockElements;
  const int64_t g_bytes = dtype_bytes(c.grad_dtype);
  const auto clear = [](std::vector<std::byte>& of, int64_t from, int64_t n) {
    if (!of.empty()) std::fill_n(of.begin() + from, n, std::byte{0});
  };
  for (int64_t block = 0; block < c.layout.rows * per_row; ++block) {
    if (!rng.chance(0.2)) continue;
    const int64_t column = block % per_row * kBlockElements, n = std::min<int64_t>(256, c.layout.row_length - column);
    const int64_t first = block / per_row * c.layout.row_length + column;
    clear(c.grad, first * g_bytes, n * g_bytes);
    for (int k = 0; k < kMaxStates; ++k) {
      const StateFormat& format = format_of(c.rule, c.codec, k);
      clear(c.codes[k], format.code_bytes(first), format.code_bytes(n));
      for (int s = 0; s < format.scales && !c.scales[k].empty(); ++s)
        c.scales[k][static_cast<size_t>(block * format.scales + s)] = 0;
    }
  }
}

// Cuts the item into parts, each with its share of the state.
std::vector<StepItem> parts_of(StepCase& c, StepItem whole, Rng& rng) {
  const int64_t blocks = c.layout.blocks(kBlockElements), row = c.layout.row_length;
  std::vector<StepItem> parts;
  for (int64_t begin = 0; begin < blocks;) {
    StepItem& part = parts.emplace_back(whole);
    part.first_block = begin;
    part.blocks = std::min(blocks - begin, rng.between(1, std::max<int64_t>(blocks / 2, 1)));
    for (int k = 0; k < kMaxStates; ++k) {
      const StateFormat& format = format_of(c.rule, c.codec, k);
      if (part.codes[k])
        part.codes[k] = c.codes[k].data() + format.code_bytes(elements_before_block(row, begin, kBlockElements));
      if (part.scales[k]) part.scales[k] = c.scales[k].data() + begin * format.scales;
    }
    begin += part.blocks;
  }
  return parts;
}

TEST(SignStep, BallotsAreTheSignsOfASteppedZero) {
  auto rng = seeded("ballots", 91);
  const auto targets = all_targets();
  const std::pair<int64_t, int64_t> shapes[] = {{5, 1},     {300, 3},  {7, 63},       {9, 65},    {4, 255},
                                                {400, 257}, {3, 1000}, {1, 4096 * 2}, {1, 70001}, {1, 5}};
  int64_t grid = 0, runs = 0, signs = 0, wrong_bytes = 0, wrong_state = 0, absent = 0, plus = 0, strided = 0;
  for (int rule = 0; rule < cpu::kRules; ++rule)
    for (int codec = 0; codec < cpu::kCodecs; ++codec)
      for (const DType grad : kDTypes) {
        // Such rules have no direction without a learning rate.
        if (rule_info(rule).make_average_args || rule_info(rule).sums) continue;
        if (!in_share(grid++)) continue;
        std::vector<StepCase> start;
        int64_t count = kSignAlignment;
        std::vector<int64_t> firsts;
        for (const auto& [rows, length] : shapes) {
          StepCase& c = start.emplace_back(rule, codec, DType::kF32, grad, rows, length, rng);
          clear_blocks(c, rng);
          firsts.push_back(count);
          count += rounded_up(c.layout.numel);
        }
        const bool zero_is_plus = rng.chance(0.5);
        // The twin steps zeros, one float at a time.
        std::vector<StepCase> twin = start;
        for (StepCase& c : twin) {
          std::fill(c.param.begin(), c.param.end(), std::byte{0});
          c.lr = 1, c.weight_decay = 0;
          c.set_step(3);
        }
        step_all(*targets.back(), twin, 1);
        Bits bits(sign_bytes(count)), presence(static_cast<size_t>(presence_bytes(count)));
        for (size_t i = 0; i < twin.size(); ++i)
          for (int64_t e = 0; e < twin[i].layout.numel; ++e) {
            const float taken = -element(twin[i].param.data(), DType::kF32, e);
            const int64_t at = firsts[i] + e;
            const bool is_plus = taken > 0 || (taken == 0 && zero_is_plus);
            plus += is_plus;
            bits[static_cast<size_t>(at / 8)] |= static_cast<unsigned char>(is_plus << (at % 8));
            if (taken != 0) presence[static_cast<size_t>(at / 512)] |= static_cast<unsigned char>(1 << (at / 64 % 8));
            if (at % 64 == 63) absent += !(presence[static_cast<size_t>(at / 512)] >> (at / 64 % 8) & 1);
          }
        for (const auto& backend : targets)
          for (const int threads : {1, 2, 3}) {
            std::vector<StepCase> cases = start;
            std::vector<StridedGradient> gradients;
            Bits got(bits.size()), got_presence(presence.size());
            std::vector<BallotTarget> to;
            gradients.reserve(cases.size()), to.reserve(cases.size());
            std::vector<StepItem> items;
            for (size_t i = 0; i < cases.size(); ++i) {
              StepCase& c = cases[i];
              c.lr = -1, c.weight_decay = 0;
              c.set_step(3);
              to.push_back({bytes(got), bytes(got_presence), firsts[i], zero_is_plus});
              StepItem item = c.item();
              item.param = nullptr, item.ballot = &to.back();
              item.param_dtype = kDTypes[rng.below(3)];
              if (rng.chance(0.3)) {
                const StridedGradient& g = gradients.emplace_back(c);
                item.grad = g.data.data(), item.grad_layout = &g.layout;
                ++strided;
              }
              const std::vector<StepItem> parts =
                  rng.chance(0.5) ? parts_of(c, item, rng) : std::vector<StepItem>{item};
              items.insert(items.end(), parts.begin(), parts.end());
            }
            backend->step(items, threads, false, nullptr);
            wrong_bytes += differing(got, bits) + differing(got_presence, presence);
            for (size_t i = 0; i < cases.size(); ++i) {
              cases[i].param = twin[i].param;
              wrong_state += differing_bytes(cases[i], twin[i]);
            }
            ++runs, signs += count;
          }
      }
  figure("{} runs, {} signs, {} strided gradients: {} bytes of bits differ, {} of state", runs, signs, strided,
         wrong_bytes, wrong_state);
  figure("of the references' signs {} are +; {} blocks are absent", plus, absent);
  EXPECT_EQ(wrong_bytes, 0);
  EXPECT_EQ(wrong_state, 0);
  EXPECT_GT(absent, share_of(1000));
  EXPECT_GT(plus, signs / runs);
  EXPECT_GT(strided, share_of(100));
}

// Returns p - (p decay + lr sign) in float32, rounded to the type.
uint32_t moved(DType dtype, const unsigned char* element, float sign, float lr, float decay) {
  const auto p = static_cast<float>(value_of(dtype, element));
  const float step = p * decay + sign * lr;
  const float to = p - (step + 0.f);
  uint32_t out;
  std::memcpy(&out, &to, sizeof out);
  if (std::isnan(to)) return dtype == DType::kF32 ? 0x7fc00000u : dtype == DType::kBF16 ? 0x7fc0u : 0x7e00u;
  if (dtype == DType::kF32) return out;
  return dtype == DType::kBF16 ? bf16_nearest(to) : f16_nearest(to);
}

TEST(SignStep, MovesBySignsAsTheFormulaSays) {
  auto rng = seeded("moves by signs", 92);
  const auto targets = all_targets();
  int64_t cases = 0, elements = 0, wrong = 0, kept = 0, zeros_seen = 0, unmoved = 0, moved_at_zero = 0, strided = 0;
  double worst = 0;
  for (int c = 0; c < 1500; ++c) {
    const DType dtype = kDTypes[rng.below(3)];
    const auto width = static_cast<size_t>(dtype_bytes(dtype));
    const int64_t rows = rng.between(1, 6), length = rng.chance(0.02) ? rng.between(1, 40000) : rng.between(1, 700);
    const int64_t sizes[] = {rows, length}, strides[] = {length + rng.between(1, 9), 1};
    const bool gaps = rng.chance(0.4);
    const Layout layout = gaps ? Layout::make(sizes, strides) : Layout::make(sizes, {});
    strided += !layout.contiguous;
    const Bits start = random_elements(dtype, layout.extent, rng);
    const int64_t first = rng.below(3) * kSignAlignment, n = layout.numel;
    Bits bits = random_bytes(sign_bytes(first + n), rng), zeros(bits.size()),
         presence(static_cast<size_t>(presence_bytes(first + n)));
    for (auto& byte : zeros) byte = static_cast<unsigned char>(rng.next() & rng.next());
    for (auto& byte : presence) byte = static_cast<unsigned char>(rng.next() | rng.next());
    const bool with_zeros = rng.chance(0.4), with_presence = rng.chance(0.6), still = rng.chance(0.2);
    const float lr = still ? 0.f : static_cast<float>(rng.over_binades(-12, 0)) * (rng.chance(0.5) ? 1.f : 0.f) + 1e-3f;
    const float step = still ? 0.f : std::fabs(lr), decay = still || rng.chance(0.3) ? 0.f : step * 0.1f;
    for (const auto& backend : targets) {
      Bits param = start;
      const ApplyItem item{dtype,
                           first,
                           param.data(),
                           &layout,
                           bytes(bits),
                           with_zeros ? bytes(zeros) : nullptr,
                           with_presence ? bytes(presence) : nullptr,
                           step,
                           decay};
      backend->apply_signs({&item, 1}, static_cast<int>(rng.between(1, 3)), nullptr);
      ++cases;
      Bits wanted = start;
      for (int64_t i = 0; i < n; ++i) {
        const int64_t at = first + i, row = i / length, e = (gaps ? row * strides[0] : row * length) + i % length;
        unsigned char* const to = wanted.data() + static_cast<size_t>(e) * width;
        const unsigned char* const got = param.data() + static_cast<size_t>(e) * width;
        const double before = value_of(dtype, to);
        ++elements;
        if (with_presence && !sign_of(presence, at / 64)) {
          ++kept;
        } else {
          const bool zero = with_zeros && sign_of(zeros, at);
          zeros_seen += zero;
          const float sign = zero ? 0.f : sign_of(bits, at) ? 1.f : -1.f;
          if (still && std::isfinite(before)) {
            moved_at_zero += std::memcmp(to, got, width) != 0;
            ++unmoved;
          }
          if (dtype == DType::kF32 && std::isfinite(before) && std::fabs(before) < 1e30) {
            // Three roundings err by half an ulp each.
            const double exact = before - (before * double{decay} + double{sign} * double{step});
            const double bound =
                0x1p-24 * (std::fabs(exact) + 2 * (std::fabs(before) * double{decay} + double{step})) * 1.01 + 0x1p-148;
            worst = std::max(worst, std::fabs(value_of(dtype, got) - exact) / bound);
          }
          const uint32_t x = moved(dtype, to, sign, step, decay);
          std::memcpy(to, &x, width);
          if (std::isnan(value_of(dtype, got)) && std::isnan(value_of(dtype, to)))
            std::memcpy(to, got, width);  // any NaN is allowed
        }
      }
      wrong += differing(param, wanted);
    }
  }
  figure("{} cases ({} strided layouts), {} elements, {} without presence, {} zeros: {} bytes differ", cases, strided,
         elements, kept, zeros_seen, wrong);
  figure("error of float32 at most {} of three roundings'; {} of {} moved by lr = 0", worst, moved_at_zero, unmoved);
  EXPECT_EQ(wrong, 0);
  EXPECT_EQ(moved_at_zero, 0);
  EXPECT_LE(worst, 1);
  EXPECT_GT(worst, 0.1);
  EXPECT_GT(kept, 10000);
  EXPECT_GT(zeros_seen, 10000);
  EXPECT_GT(unmoved, 10000);
  EXPECT_GT(strided, 100);
}

// One residual in its stored form.
struct Residual {
  int codec;
  int64_t count;
  std::vector<std::byte> codes;
  std::vector<float> scales;
  Residual(int of_codec, int64_t of_count) : codec(of_codec), count(of_count) {
    if (codec < 0) return;
    const CodecInfo& info = codec_info(codec);
    codes.resize(static_cast<size_t>(count * info.format[1].code_bits / 8),
                 static_cast<std::byte>(info.format[1].zero));
    if (info.scaled) scales.resize(static_cast<size_t>((count + 255) / 256));
  }
  CodecItem item(std::vector<float>& values) {
    CodecItem out;
    out.codec = codec, out.rows = 1, out.row_length = count;
    out.codes = codes.data(), out.scales = scales.empty() ? nullptr : scales.data(), out.values = values.data();
    return out;
  }
  void give(FeedbackItem& to) {
    if (codec < 0 || count == 0) return;
    to.codec = codec, to.codes = codes.data(), to.scales = scales.empty() ? nullptr : scales.data();
  }
};

TEST(SignStep, FeedbackIsThatOfItsFormulas) {
  auto rng = seeded("feedback", 93);
  const auto targets = all_targets();
  Backend& scalar = *targets.back();
  int64_t cases = 0, signs = 0, wrong_bits = 0, wrong_scales = 0, wrong_codes = 0, of_ballots = 0, kept_differs = 0;
  for (int c = 0; c < 2000; ++c) {
    const int64_t count = rng.chance(0.01) ? rng.between(1, 200000) : rng.between(1, 2600);
    const int64_t first = rng.below(3) * kSignAlignment;
    int codec = static_cast<int>(rng.below(cpu::kCodecs + 1)) - 1;
    if (codec >= 0 && codec_info(codec).has_pairs()) codec = -1;  // residuals cannot have pairs
    Residual start(codec, count);
    FeedbackReference reference;
    reference.residual.resize(static_cast<size_t>(count));
    const double unit = std::fabs(rng.over_binades(-20, 4));
    if (codec >= 0 && rng.chance(0.8)) {
      std::vector<float> before(static_cast<size_t>(count));
      for (float& x : before) x = static_cast<float>(unit * rng.normal());
      scalar.encode(start.item(before), nullptr);
      scalar.decode(start.item(reference.residual), nullptr);
    }
    // The input is values, or what voters sent.
    FeedbackItem item;
    item.first = first, item.count = count;
    Bits values;
    std::vector<Bits> ballots;
    std::vector<std::vector<uint16_t>> scales;
    std::vector<uint32_t> weights;
    std::vector<const std::byte*> ballot_at;
    std::vector<const uint16_t*> scales_at;
    std::vector<float> x;
    if (rng.chance(0.5)) {
      item.dtype = kDTypes[rng.below(3)];
      item.value_scale = rng.chance(0.5) ? 1.f : static_cast<float>(rng.over_binades(-4, 4));
      const auto width = static_cast<size_t>(dtype_bytes(item.dtype));
      values.resize(static_cast<size_t>(count) * width);
      std::vector<std::byte> raw(values.size());
      for (int64_t i = 0; i < count; ++i)
        put(raw, item.dtype, i, rng.chance(0.05) ? (rng.chance(0.5) ? 0. : -0.) : unit * rng.normal());
      std::memcpy(values.data(), raw.data(), raw.size());
      item.values = values.data();
      for (int64_t i = 0; i < count; ++i) x.push_back(element(values.data(), item.dtype, i) * item.value_scale);
    } else {
      const auto voters = static_cast<size_t>(rng.between(1, 9));
      for (size_t v = 0; v < voters; ++v) {
        Bits& ballot = ballots.emplace_back(sign_bytes(count));
        for (auto& byte : ballot) byte = static_cast<unsigned char>(rng.next());
        auto& of = scales.emplace_back();
        for (int64_t at = 0; at < count; at += 1024) of.push_back(bf16_nearest(unit * rng.uniform()));
        weights.push_back(v && rng.chance(0.2) ? 0 : static_cast<uint32_t>(rng.between(1, 1000)));
      }
      const bool equal = rng.chance(0.3);
      if (equal) std::fill(weights.begin(), weights.end(), 1u);
      x = FeedbackReference::mean(count, ballots, scales, weights);
      // The item counts from sign 0 of whole arrays.
      for (size_t v = 0; v < voters; ++v) {
        ballots[v].insert(ballots[v].begin(), static_cast<size_t>(first / 8), 0xa5);
        scales[v].insert(scales[v].begin(), static_cast<size_t>(first / 1024), 0x7fc0);
        const bool absent = weights[v] == 0 && rng.chance(0.5);
        ballot_at.push_back(absent ? nullptr : bytes(ballots[v]));
        scales_at.push_back(absent ? nullptr : scales[v].data());
      }
      item.ballots = ballot_at, item.ballot_scales = scales_at;
      if (!equal) item.weights = weights;
      ++of_ballots;
    }
    const std::vector<float> residual_before = reference.residual;
    reference.run(x);
    Residual wanted = start;
    if (codec >= 0) scalar.encode(wanted.item(reference.residual), nullptr);
    kept_differs += codec >= 0 && wanted.codes != start.codes;
    for (const auto& backend : targets) {
      Residual kept = start;
      kept.give(item);
      constexpr size_t kBehind = 7;  // bytes that must not change
      Bits bits(sign_bytes(first + count) + kBehind, 0x5a), all = bits;
      std::vector<uint16_t> got(static_cast<size_t>(first / 1024) + reference.scales.size() + 1, 0x1234), scale = got;
      std::copy(reference.bits.begin(), reference.bits.end(), all.begin() + first / 8);
      std::copy(reference.scales.begin(), reference.scales.end(), scale.begin() + first / 1024);
      item.bits = bytes(bits), item.bit_scales = got.data();
      backend->feedback({&item, 1}, static_cast<int>(rng.between(1, 3)), nullptr);
      wrong_bits += differing(bits, all);
      for (size_t i = 0; i < got.size(); ++i) wrong_scales += got[i] != scale[i];
      wrong_codes += kept.codes != wanted.codes || kept.scales != wanted.scales;
      ++cases, signs += count;
    }
  }
  figure("{} cases ({} of ballots), {} signs: {} bytes of bits, {} scales, {} residuals differ", cases,
         of_ballots * std::ssize(targets), signs, wrong_bits, wrong_scales, wrong_codes);
  EXPECT_GE(cases, 2000 * static_cast<int64_t>(targets.size()));
  EXPECT_EQ(wrong_bits, 0);
  EXPECT_EQ(wrong_scales, 0);
  EXPECT_EQ(wrong_codes, 0);
  EXPECT_GT(kept_differs, 1000);
}

// A NaN counts as - and makes the scale NaN, so that it does not go unnoticed.
TEST(SignStep, FeedbackKeepsNaNVisible) {
  int64_t looked = 0;
  for (const auto& backend : all_targets())
    for (const int codec : {-1, 0, 1, 2}) {
      std::vector<float> values(1500, 1.f);
      values[700] = NAN;
      Residual residual(codec, 1500);
      Bits bits(sign_bytes(1500));
      uint16_t scales[2] = {};
      FeedbackItem item;
      item.count = 1500, item.values = values.data(), item.bits = bytes(bits), item.bit_scales = scales;
      residual.give(item);
      backend->feedback({&item, 1}, 1, nullptr);
      for (int64_t i = 0; i < 1500; ++i) EXPECT_EQ(sign_of(bits, i), i != 700);
      EXPECT_TRUE(std::isnan(scale_value(scales[0])));
      EXPECT_EQ(scale_value(scales[1]), 1.f);
      ++looked;
    }
  figure("{} codecs and targets", looked);
}

}  // namespace
}  // namespace lowtide::testing
