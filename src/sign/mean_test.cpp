// Tests that means with error feedback have the same bits for any number of ranks as in one process, that the sent
// values and the residual add up, and that a mean that is not applied changes no residual.
#include "backend/cpu/cpu_backend.h"
#include "backend/catalog.h"
#include "support/sign_ranks.h"
#include "support/test.h"

namespace lowtide::testing {
namespace {

float number(uint16_t bf16) {
  const uint32_t wide = uint32_t{bf16} << 16;
  float x;
  std::memcpy(&x, &wide, sizeof x);
  return x;
}

uint16_t random_scale(Rng& rng) {
  // bfloat16 values from 2^-12 to below 2^4, or zero
  return rng.chance(0.05) ? uint16_t{0} : static_cast<uint16_t>((115 + rng.below(16)) << 7 | rng.below(128));
}

struct MeanCase {
  int ranks = 1;
  int64_t count = 0;
  std::string state;
  std::vector<uint32_t> weights;
  std::vector<Bits> bits;
  std::vector<std::vector<uint16_t>> scales;

  void draw(Rng& rng) {
    bits.clear(), scales.clear();
    for (int r = 0; r < ranks; ++r) {
      bits.push_back(random_bits(count, rng));
      scales.emplace_back();
      for (int64_t i = 0; i < sign_scales(count); ++i) scales.back().push_back(random_scale(rng));
    }
  }
  SignBallot ballot(int rank, uint64_t step) const {
    const auto r = static_cast<size_t>(rank);
    SignBallot out;
    out.count = count, out.bits = bytes(bits[r]), out.scales = scales[r].data();
    out.step = step, out.weight = weights[r];
    return out;
  }
};

MeanCase random_case(int ranks, Rng& rng) {
  static const char* const states[] = {"fp32", "bf16", "dynamic8"};
  MeanCase of;
  of.ranks = ranks;
  of.count = rng.chance(0.3) ? rng.between(1, 3) * 1024 : rng.between(1, 9000);
  of.state = states[rng.below(3)];
  for (int r = 0; r < ranks; ++r) of.weights.push_back(static_cast<uint32_t>(rng.below(4)));
  of.weights[static_cast<size_t>(rng.below(ranks))] = 2;
  return of;
}

struct MeanResult {
  Bits bits;
  std::vector<uint16_t> scales;
  explicit MeanResult(int64_t count)
      : bits(sign_bytes(count), 0xa5), scales(static_cast<size_t>(sign_scales(count)), 0xa5a5) {}
  SignResult memory() { return {bytes(bits), nullptr, nullptr, scales.data()}; }
  bool operator==(const MeanResult&) const = default;
};

// Computes the mean of all signs in one place: bits, scales and the residual.
struct Whole {
  explicit Whole(const MeanCase& of)
      : residual(of.count, 0, 1, of.state), cpu(cpu::make_backend("")), result(of.count) {}

  // The residual lives in one buffer, codes before scales, in the format of SignResidual.
  void step(const MeanCase& of) {
    const CodecInfo& codec = codec_info(find_codec(of.state));
    std::vector<std::byte> stored(static_cast<size_t>(residual.bytes()));
    residual.read(stored.data());
    const auto codes_bytes = static_cast<size_t>(of.count * codec.format[1].code_bits / 8);
    std::vector<float> codes((codes_bytes + 3) / 4), scales((stored.size() - codes_bytes) / 4);
    std::memcpy(codes.data(), stored.data(), codes_bytes);
    if (!scales.empty()) std::memcpy(scales.data(), stored.data() + codes_bytes, scales.size() * 4);
    std::vector<const std::byte*> ballots;
    std::vector<const uint16_t*> ballot_scales;
    for (size_t r = 0; r < of.bits.size(); ++r)
      ballots.push_back(bytes(of.bits[r])), ballot_scales.push_back(of.scales[r].data());
    FeedbackItem item;
    item.count = of.count;
    item.ballots = ballots, item.ballot_scales = ballot_scales, item.weights = of.weights;
    item.codec = find_codec(of.state);
    item.codes = codes.data(), item.scales = scales.empty() ? nullptr : scales.data();
    item.bits = bytes(result.bits), item.bit_scales = result.scales.data();
    cpu->feedback({&item, 1}, 1, nullptr);
    std::memcpy(stored.data(), codes.data(), codes_bytes);
    if (!scales.empty()) std::memcpy(stored.data() + codes_bytes, scales.data(), scales.size() * 4);
    residual.replace(stored.data());
  }

  SignResidual residual;
  std::unique_ptr<Backend> cpu;
  MeanResult result;
};

TEST(SignMean, IsThatOfAllSignsInOnePlace) {
  Rng rng = seeded("means", 11);
  int64_t cases = 0, signs = 0;
  for (int i = 0; i < 150; ++i) {
    MeanCase of = random_case(static_cast<int>(rng.between(1, 9)), rng);
    constexpr int kSteps = 3;
    Whole whole(of);
    ThreadGroup group(of.ranks, std::chrono::seconds(60));
    std::vector<SignCollective> collectives;
    std::vector<SignResidual> residuals;
    for (int r = 0; r < of.ranks; ++r) {
      SignCollectiveOptions options{.threads = 1};
      collectives.emplace_back(group.transport(r), options);
      residuals.emplace_back(of.count, r, of.ranks, of.state);
    }
    for (int step = 0; step < kSteps; ++step) {
      of.draw(rng);
      whole.step(of);
      std::vector<MeanResult> results(static_cast<size_t>(of.ranks), MeanResult(of.count));
      for (const Ended& each : run_ranks(of.ranks, [&](int r) {
             const auto at = static_cast<size_t>(r);
             return collectives[at].mean(of.ballot(r, static_cast<uint64_t>(step)), results[at].memory(),
                                         residuals[at]);
           }))
        ASSERT_TRUE(!each.threw && each.outcome.applied) << each.text;
      std::vector<float> all(static_cast<size_t>(of.count)), parts(all);
      whole.residual.read_values(all.data());
      int64_t covered = 0;
      for (int r = 0; r < of.ranks; ++r) {
        const auto at = static_cast<size_t>(r);
        ASSERT_EQ(results[at], whole.result) << of.ranks << " ranks, " << of.count << " signs, " << of.state;
        residuals[at].read_values(parts.data() + residuals[at].first());
        covered += residuals[at].count();
      }
      ASSERT_EQ(covered, of.count);
      ASSERT_EQ(std::memcmp(all.data(), parts.data(), all.size() * sizeof(float)), 0) << of.state;
      ++cases, signs += of.count;
    }
  }
  figure("{} means of 1 to 9 ranks, {} signs: bits, scales and residuals as in one place", cases, signs);
}

// The values sent and the values left add up to the sum of the means, except for float32 rounding: about one ulp of a
// value per step.
TEST(SignMean, LosesNothing) {
  Rng rng = seeded("sums of means", 12);
  MeanCase of = random_case(4, rng);
  of.count = 5000, of.state = "fp32", of.weights = {1, 2, 0, 3};
  constexpr int kSteps = 40;
  std::vector<double> means(5000), sent(5000);
  ThreadGroup group(4, std::chrono::seconds(60));
  std::vector<SignCollective> collectives;
  std::vector<SignResidual> residuals;
  for (int r = 0; r < 4; ++r)
    collectives.emplace_back(group.transport(r)), residuals.emplace_back(of.count, r, 4, of.state);
  double largest = 0;
  for (int step = 0; step < kSteps; ++step) {
    of.draw(rng);
    std::vector<MeanResult> results(4, MeanResult(of.count));
    for (const Ended& each : run_ranks(4, [&](int r) {
           const auto at = static_cast<size_t>(r);
           return collectives[at].mean(of.ballot(r, 0), results[at].memory(), residuals[at]);
         }))
      ASSERT_TRUE(each.outcome.applied) << each.text;
    for (int64_t i = 0; i < of.count; ++i) {
      const auto at = static_cast<size_t>(i);
      for (size_t r = 0; r < 4; ++r) {
        const double scale = number(of.scales[r][at / 1024]);
        means[at] += of.weights[r] / 6.0 * (sign_of(of.bits[r], i) ? scale : -scale);
      }
      const double scale = number(results[0].scales[at / 1024]);
      sent[at] += sign_of(results[0].bits, i) ? scale : -scale;
      largest = std::max(largest, std::abs(means[at]));
    }
  }
  std::vector<float> left(5000);
  for (const SignResidual& each : residuals) each.read_values(left.data() + each.first());
  double worst = 0, without = 0, magnitude = 0;
  for (size_t i = 0; i < left.size(); ++i) {
    worst = std::max(worst, std::abs(means[i] - sent[i] - left[i]));
    without = std::max(without, std::abs(means[i] - sent[i]));
    magnitude = std::max(magnitude, std::abs(double{left[i]}));
  }
  // Each step rounds six times, and the values are no larger than a ballot's scale (2^4) plus the residual.
  const double bound = kSteps * 6 * (magnitude + 16) * 0x1p-24;
  EXPECT_LT(worst, bound);
  EXPECT_GT(without, 1000 * bound) << "the residual holds nothing";
  figure("{} steps: means - sent - residual at most {} (bound {}; without the residual {})", kSteps, worst, bound,
         without);
}

TEST(SignMean, WhatIsNotAppliedLeavesTheResidual) {
  Rng rng = seeded("means undone", 13);
  int64_t grid = 0, damaged = 0, not_applied = 0, right = 0, without = 0;
  for (int call = 0; call < 5; ++call)
    for (int sender = 0; sender < 5; ++sender)
      for (const char* state : {"fp32", "bf16", "dynamic8"})
        for (const int what : {0, 1, 2}) {  // a bit flipped at one rank, at all other ranks, or a non-finite scale
          // Every share runs each call with each kind of damage.
          const bool always = sender == 0 && std::string(state) == "fp32";
          if (!always && !in_share(grid++)) continue;
          MeanCase of = random_case(5, rng);
          of.count = 5 * 1024 - 3, of.state = state, of.weights = {1, 1, 1, 1, 1};
          of.draw(rng);
          const int64_t hit = 5 + call;  // in the second mean
          ThreadGroup group(5, std::chrono::seconds(60));
          Rng place(rng.next());
          group.on_message([&](ThreadGroup::Message& m) {
            if (m.call != hit || m.sender != sender || what == 2) return;
            if (what == 0 ? m.receiver == (sender + 1) % 5 : m.receiver != sender)
              m.data[place.below(m.bytes)] ^= std::byte{1};
          });
          std::vector<std::vector<std::byte>> before(5), after(5);
          std::vector<MeanResult> results(5, MeanResult(of.count));
          const std::vector<Ended> ended = run_ranks(5, [&](int r) {
            const auto at = static_cast<size_t>(r);
            SignCollective collective(group.transport(r));
            SignResidual residual(of.count, r, 5, state);
            MeanResult first(of.count);
            EXPECT_TRUE(collective.mean(of.ballot(r, 0), first.memory(), residual).applied);
            before[at].resize(static_cast<size_t>(residual.bytes())), after[at] = before[at];
            residual.read(before[at].data());
            SignBallot second = of.ballot(r, 1);
            std::vector<uint16_t> scales = of.scales[at];
            if (what == 2 && r == sender) scales[2] = 0x7fc0;
            second.scales = scales.data();
            SignOutcome outcome;
            try {
              outcome = collective.mean(second, results[at].memory(), residual);
            } catch (...) {
              residual.read(after[at].data());
              throw;
            }
            residual.read(after[at].data());
            return outcome;
          });
          int threw = 0;
          for (const Ended& each : ended) threw += each.threw;
          ASSERT_TRUE(threw == 0 || threw == 5);
          for (size_t r = 0; r < 5; ++r) {
            ASSERT_EQ(ended[r].text, ended[0].text);
            ASSERT_EQ(before[r] == after[r], threw == 5) << "rank " << r;
            ASSERT_EQ(results[r], threw ? MeanResult(of.count) : results[0]);
          }
          ++damaged;
          not_applied += threw == 5;
          const bool rejected = threw == 0 && !ended[0].outcome.rejected.empty();
          without += rejected, right += threw == 0 && !rejected;
          if (what == 2) {
            ASSERT_EQ(threw, 0) << ended[0].text;
            ASSERT_EQ(ended[0].outcome.rejected.size(), 1u);
            ASSERT_TRUE(ended[0].outcome.rejected[0].sender == sender && ended[0].outcome.rejected[0].owner == 2);
          }
        }
  EXPECT_TRUE(not_applied > 0 && without > 0 && right > 0);
  figure("{} damaged means: {} refused by all, every residual as before; {} without a ballot, its sender named; {} "
         "unharmed", damaged, not_applied, without, right);
}

// A mean of scales that exceeds the float32 range is refused.
TEST(SignMean, OverflowIsNotAppliedAndNotKept) {
  constexpr int64_t kCount = 3000;
  ThreadGroup group(2, std::chrono::seconds(60));
  int64_t refused = 0, infinite = 0;
  const auto ended = run_ranks(2, [&](int r) {
    SignCollective collective(group.transport(r));
    SignResidual residual(kCount, r, 2, "fp32");
    std::vector<std::byte> bits(sign_bits_bytes(kCount), std::byte{0x5a}), result(bits.size());
    std::vector<uint16_t> scales(sign_scales(kCount)), means(scales.size());
    SignBallot ballot{.count = kCount, .bits = bits.data(), .scales = scales.data()};
    SignOutcome outcome;
    for (const uint16_t scale : {uint16_t{0x7f7f}, uint16_t{0x3f80}}) {  // the largest bfloat16, and 1
      std::fill(scales.begin(), scales.end(), scale);
      try {
        outcome = collective.mean(ballot, {result.data(), nullptr, nullptr, means.data()}, residual);
      } catch (const CollectiveError& e) {
        EXPECT_EQ(scale, 0x7f7f) << e.what();
        if (r == 0) ++refused;
      }
    }
    EXPECT_EQ(means, std::vector<uint16_t>(means.size(), 0x3f80));
    std::vector<float> kept(static_cast<size_t>(residual.count()));
    residual.read_values(kept.data());
    for (const float x : kept)
      if (r == 0) infinite += !std::isfinite(x);
    return outcome;
  });
  for (const Ended& each : ended) EXPECT_TRUE(each.outcome.applied) << each.text;
  EXPECT_EQ(refused, 1);
  EXPECT_EQ(infinite, 0);
  figure("{} mean beyond float32 refused; the next is applied, {} residuals are not finite", refused, infinite);
}

TEST(SignMean, ResidualsGoThroughCheckpointsAndOtherNumbersOfRanks) {
  Rng rng(14);
  for (const char* state : {"fp32", "bf16", "dynamic8"}) {
    constexpr int64_t kCount = 9000;
    std::vector<float> values(kCount);
    for (float& x : values) x = static_cast<float>(rng.normal());
    SignResidual one(kCount, 0, 1, state), again(kCount, 0, 1, state);
    EXPECT_GT(one.allocated_bytes(), one.bytes());
    one.replace_values(values.data());
    std::vector<std::byte> stored(static_cast<size_t>(one.bytes())), restored(stored);
    one.read(stored.data());
    again.replace(stored.data());
    again.read(restored.data());
    EXPECT_EQ(stored, restored);
    std::vector<float> whole(kCount), parts(kCount);
    one.read_values(whole.data());
    for (int r = 0; r < 4; ++r) {
      SignResidual part(kCount, r, 4, state);
      part.replace_values(values.data() + part.first());
      part.read_values(parts.data() + part.first());
    }
    EXPECT_EQ(whole, parts) << state;
    SignResidual empty(10, 3, 4, state);
    EXPECT_EQ(empty.count(), 0);
    EXPECT_EQ(empty.bytes(), 0);
  }
  EXPECT_THROW(SignResidual(10, 4, 4, "bf16"), Error);
  EXPECT_THROW(SignResidual(10, 0, 4, "int3"), Error);
}

TEST(SignMean, AnotherShapeOfResidualIsRefused) {
  ThreadGroup group(1, std::chrono::seconds(1));
  SignCollective collective(group.transport(0));
  MeanResult result(100);
  const Bits bits(13, 0);
  const std::vector<uint16_t> scales(1, 0x3f80);
  SignBallot ballot{.count = 100, .bits = bytes(bits), .scales = scales.data()};
  SignResidual other(101, 0, 1), right(100, 0, 1);
  EXPECT_THROW((void)collective.mean(ballot, result.memory(), other), Error);
  EXPECT_TRUE(collective.mean(ballot, result.memory(), right).applied);
  ballot.presence = bytes(bits);
  EXPECT_THROW((void)collective.mean(ballot, result.memory(), right), Error);
}

}  // namespace
}  // namespace lowtide::testing
