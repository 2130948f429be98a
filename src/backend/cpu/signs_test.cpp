// Compares signs on the CPU with their definition: which values are +, and how ties are broken.
#include "backend/signs.h"

#include "backend/cpu/cpu_backend.h"
#include "support/sign_reference.h"
#include "support/test.h"

namespace lowtide::testing {
namespace {

// Covers every 16-bit element, and the floats around each border.
TEST(CpuSigns, PlusIsNotBelowZero) {
  const auto cpu = cpu::make_backend("");
  int64_t looked = 0, wrong = 0, nans = 0, minus_zeros = 0;
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
    const auto width = static_cast<size_t>(dtype_bytes(dtype));
    constexpr int64_t kCount = 65536;
    Bits values(kCount * width), bits(kCount / 8), wanted(kCount / 8);
    for (uint32_t i = 0; i < kCount; ++i) {
      // float32: the upper half counts up; the lower half is 0, 1 or its largest value.
      const uint32_t x = dtype == DType::kF32 ? i << 16 | (i % 3 == 0 ? 0 : i % 3 == 1 ? 1 : 0xffff) : i;
      std::memcpy(values.data() + i * width, &x, width);
      const double value = value_of(dtype, values.data() + i * width);
      nans += std::isnan(value), minus_zeros += value == 0 && std::signbit(value);
    }
    cpu->pack_signs({dtype, 0, kCount, values.data(), bytes(bits)}, nullptr);
    reference_pack(dtype, values, 0, kCount, &wanted);
    for (int64_t i = 0; i < kCount; ++i) wrong += sign_of(bits, i) != sign_of(wanted, i);
    looked += kCount;
  }
  const float cases[] = {0.f, -0.f, NAN, -NAN, INFINITY, -INFINITY, 1e-45f, -1e-45f, 1.f, -1.f};
  Bits bits(2), values(sizeof cases);
  std::memcpy(values.data(), cases, sizeof cases);
  cpu->pack_signs({DType::kF32, 0, 10, values.data(), bytes(bits)}, nullptr);
  EXPECT_EQ(bits[0], 0b01010011) << "0, -0, infinity and the smallest denormal are +";
  EXPECT_EQ(bits[1], 0b01) << "and of the rest, 1";
  figure("{} elements, {} NaN, {} -0: {} wrong", looked, nans, minus_zeros, wrong);
  EXPECT_EQ(wrong, 0);
  EXPECT_GT(nans, 1000);
  EXPECT_GE(minus_zeros, 2);
}

// Votes on nothing but ties: the bits are fair, independent between elements and between steps, and depend on the
// element's index in the whole, however the whole is cut.
TEST(CpuSigns, HashedTiesAreFairAndOfTheElement) {
  constexpr int64_t kCount = 200000;
  const auto cpu = cpu::make_backend("");
  const auto bits_of = [&](uint64_t seed, uint64_t step, uint64_t first, int64_t count) {
    Bits result(sign_bytes(count));
    VoteItem item;
    item.count = count, item.seed = seed, item.step = step, item.first_index = first, item.result = bytes(result);
    cpu->vote_signs(item, 1, nullptr);
    return result;
  };
  const Bits all = bits_of(7, 3, 0, kCount);
  const auto agreement = [&](const Bits& other, int64_t lag) {
    int64_t same = 0;
    for (int64_t i = 0; i + lag < kCount; ++i) same += sign_of(all, i) == sign_of(other, i + lag);
    return static_cast<double>(same) / static_cast<double>(kCount - lag);
  };
  int64_t plus = 0;
  for (int64_t i = 0; i < kCount; ++i) plus += sign_of(all, i);
  const double fraction = static_cast<double>(plus) / kCount;
  // A fair coin deviates by more than 5 standard deviations in 1 of 1.7 million cases.
  const double bound = 5 * 0.5 / std::sqrt(kCount * 0.9);
  double worst = std::abs(fraction - 0.5);
  for (const int64_t lag : {1, 2, 7, 8, 31, 32, 33, 64, 256, 1024, 4096})
    worst = std::max(worst, std::abs(agreement(all, lag) - 0.5));
  for (const auto& [seed, step] : {std::pair{7, 4}, {7, 2}, {8, 3}, {6, 3}, {3, 7}})
    worst = std::max(
        worst,
        std::abs(agreement(bits_of(static_cast<uint64_t>(seed), static_cast<uint64_t>(step), 0, kCount), 0) - 0.5));
  int64_t differing = 0, compared = 0;
  auto rng = seeded("hashed ties", 83);
  for (int i = 0; i < 200; ++i) {
    const int64_t first = rng.below(kCount - 500), count = rng.between(1, 500);
    const Bits part = bits_of(7, 3, static_cast<uint64_t>(first), count);
    for (int64_t k = 0; k < count; ++k) differing += sign_of(part, k) != sign_of(all, first + k);
    compared += count;
  }
  figure("{} ties: {} are +, 16 correlations, the worst deviation {} of {}; {} of {} differ in parts", kCount, fraction,
         worst, bound, differing, compared);
  EXPECT_LT(worst, bound);
  EXPECT_EQ(differing, 0);
}

TEST(CpuSigns, RefusesWhatMakesNoSense) {
  const auto cpu = cpu::make_backend("");
  alignas(8) unsigned char memory[64] = {};
  auto* bits = reinterpret_cast<std::byte*>(memory);
  int refused = 0;
  const auto refuses = [&](const auto& act, const char* part) {
    expect_refusal(act, part);
    ++refused;
  };
  const auto pack = [&](const SignItem& item) { return [&cpu, item] { cpu->pack_signs(item, nullptr); }; };
  refuses(pack({DType::kF32, -1, 8, memory, bits}), "got 8 signs that begin at number -1");
  refuses(pack({DType::kF32, 0, -8, memory, bits}), "got -8 signs");
  refuses(pack({DType::kF32, 0, std::numeric_limits<int64_t>::max(), memory, bits}), "wanted both from 0");
  refuses(pack({DType::kF32, 0, 8, nullptr, bits}), "got no values");
  refuses(pack({DType::kF32, 0, 8, memory, nullptr}), "got no bits");
  refuses(pack({DType::kF32, 0, 8, memory + 2, bits}), "aligned");
  refuses(pack({DType::kBF16, 0, 8, memory + 1, bits}), "aligned");
  const std::byte* ballots[] = {bits, nullptr};
  const uint32_t weights[] = {1, 1, 1}, much[] = {1u << 31, 0};
  const auto vote = [&](auto&& change) {
    VoteItem item;
    item.count = 8, item.ballots = {ballots, 1}, item.result = bits;
    change(item);
    return [&cpu, item] { cpu->vote_signs(item, 1, nullptr); };
  };
  refuses(vote([](VoteItem& v) { v.count = -1; }), "got -1 signs");
  refuses(vote([&](VoteItem& v) { v.ballots = ballots; }), "voter 1, whose weight is 1");
  refuses(vote([&](VoteItem& v) { v.weights = weights; }), "got 3 weights for 1 ballots");
  refuses(vote([&](VoteItem& v) { v.ballots = ballots, v.weights = much; }), "fewer than 2^31");
  refuses(vote([](VoteItem& v) { v.ties = static_cast<TieRule>(99); }), "tie rule 99");
  refuses(vote([](VoteItem& v) { v.ties = TieRule::kPrevious; }), "no earlier result");
  refuses(vote([](VoteItem& v) { v.ties = TieRule::kZero; }), "no memory for the marks");
  refuses(vote([](VoteItem& v) { v.result = nullptr; }), "no memory for the result");
  for (const unsigned char byte : memory) EXPECT_EQ(byte, 0);
  figure("{} items refused", refused);
}

}  // namespace
}  // namespace lowtide::testing
