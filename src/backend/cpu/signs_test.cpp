// Signs on the CPU against their definition: predicate, layout, votes, and what breaks ties.
#include "backend/signs.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>

#include "backend/cpu/cpu_backend.h"
#include "lowtide/error.h"
#include "support/sign_reference.h"

namespace lowtide {
namespace {

using testing::Bits;

std::byte* bytes(Bits& bits) { return reinterpret_cast<std::byte*>(bits.data()); }

// Every 16-bit element, and the floats around each border.
TEST(CpuSigns, PlusIsNotBelowZero) {
  const auto cpu = cpu::make_backend("");
  int64_t looked = 0, wrong = 0, nans = 0, minus_zeros = 0;
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
    const auto width = static_cast<size_t>(dtype_bytes(dtype));
    constexpr int64_t kCount = 65536;
    Bits values(kCount * width), bits(kCount / 8), wanted(kCount / 8);
    for (uint32_t i = 0; i < kCount; ++i) {
      // float32: the upper half counts, and the lower ones are the ends of its range.
      const uint32_t x = dtype == DType::kF32 ? i << 16 | (i % 3 == 0 ? 0 : i % 3 == 1 ? 1 : 0xffff) : i;
      std::memcpy(values.data() + i * width, &x, width);
      const double value = testing::value_of(dtype, values.data() + i * width);
      nans += std::isnan(value), minus_zeros += value == 0 && std::signbit(value);
    }
    cpu->pack_signs({dtype, 0, kCount, values.data(), bytes(bits)}, nullptr);
    testing::reference_pack(dtype, values, 0, kCount, &wanted);
    for (int64_t i = 0; i < kCount; ++i) wrong += testing::sign_of(bits, i) != testing::sign_of(wanted, i);
    looked += kCount;
  }
  const float cases[] = {0.f, -0.f, NAN, -NAN, INFINITY, -INFINITY, 1e-45f, -1e-45f, 1.f, -1.f};
  Bits bits(2), values(sizeof cases);
  std::memcpy(values.data(), cases, sizeof cases);
  cpu->pack_signs({DType::kF32, 0, 10, values.data(), bytes(bits)}, nullptr);
  EXPECT_EQ(bits[0], 0b01010011) << "0, -0, infinity and the smallest denormal are +";
  EXPECT_EQ(bits[1], 0b01) << "and of the rest, 1";
  std::printf("%lld elements, %lld NaN, %lld -0: %lld wrong\n", static_cast<long long>(looked),
              static_cast<long long>(nans), static_cast<long long>(minus_zeros), static_cast<long long>(wrong));
  EXPECT_EQ(wrong, 0);
  EXPECT_GT(nans, 1000);
  EXPECT_GE(minus_zeros, 2);
}

// Pieces at any bit, and what comes back.
TEST(CpuSigns, PiecesOfAnySizeAnywhere) {
  auto rng = testing::seeded("sign pieces", 81);
  const auto cpu = cpu::make_backend("");
  constexpr int kCases = 3000;
  int64_t differing = 0, elements = 0, zeros_seen = 0;
  for (int c = 0; c < kCases; ++c) {
    const auto dtype = static_cast<DType>(rng.below(3));
    const auto width = static_cast<size_t>(dtype_bytes(dtype));
    const int64_t first = rng.below(200), count = rng.below(300);
    Bits values = testing::random_elements(dtype, count, rng), bits(testing::sign_bytes(first + count) + 3);
    for (auto& byte : bits) byte = static_cast<unsigned char>(rng.next());
    Bits wanted = bits;
    cpu->pack_signs({dtype, first, count, values.data(), bytes(bits)}, nullptr);
    testing::reference_pack(dtype, values, first, count, &wanted);
    for (size_t b = 0; b < bits.size(); ++b) differing += std::popcount(static_cast<unsigned>(bits[b] ^ wanted[b]));
    Bits marks(bits.size());
    for (auto& byte : marks) byte = static_cast<unsigned char>(rng.next() & rng.next());
    const bool marked = rng.chance(0.5);
    Bits back(values.size());
    cpu->unpack_signs({dtype, first, count, back.data(), bytes(bits), marked ? bytes(marks) : nullptr}, nullptr);
    for (int64_t i = 0; i < count; ++i) {
      const bool zero = marked && testing::sign_of(marks, first + i);
      const double want = zero ? 0 : testing::sign_of(bits, first + i) ? 1 : -1;
      differing += testing::value_of(dtype, back.data() + static_cast<size_t>(i) * width) != want;
      zeros_seen += zero;
    }
    elements += count;
  }
  std::printf("%d pieces of %lld signs, %lld marked as zero: %lld differ\n", kCases, static_cast<long long>(elements),
              static_cast<long long>(zeros_seen), static_cast<long long>(differing));
  EXPECT_EQ(differing, 0);
  EXPECT_GT(zeros_seen, 1000);
}

// Where counters change their number of planes.
TEST(CpuSigns, VotesOfAnyNumberOfVoters) {
  auto rng = testing::seeded("sign votes", 82);
  const auto cpu = cpu::make_backend("");
  int64_t differing = 0, votes = 0, ties = 0;
  for (const size_t voters : {0, 1, 2, 3, 4, 7, 8, 9, 15, 16, 17, 63, 64, 127, 128, 255, 256, 257, 1000}) {
    const int64_t count = rng.between(60, 200);
    std::vector<Bits> ballots(voters, Bits(testing::sign_bytes(count)));
    for (Bits& ballot : ballots)
      for (auto& byte : ballot) byte = static_cast<unsigned char>(rng.next());
    // An even number of voters, half of whom contradict the others in part, has ties.
    for (size_t v = 0; v + 1 < voters; v += 2)
      for (size_t b = 0; b < ballots[v].size() / 2; ++b) ballots[v + 1][b] = static_cast<unsigned char>(~ballots[v][b]);
    std::vector<const std::byte*> pointers;
    for (Bits& ballot : ballots) pointers.push_back(bytes(ballot));
    Bits result(testing::sign_bytes(count)), wanted, tied;
    VoteItem item;
    item.count = count, item.ballots = pointers, item.ties = TieRule::kMinus, item.result = bytes(result);
    cpu->vote_signs(item, 1, nullptr);
    const testing::ReferenceVote vote{ballots, std::vector<uint32_t>(voters, 1), "kMinus", {}};
    ties += vote.count(count, &wanted, &tied, [](int64_t) { return false; });
    for (size_t b = 0; b < result.size(); ++b) differing += std::popcount(static_cast<unsigned>(result[b] ^ wanted[b]));
    votes += count * static_cast<int64_t>(voters);
  }
  std::printf("%lld votes, %lld ties: %lld bits differ\n", static_cast<long long>(votes), static_cast<long long>(ties),
              static_cast<long long>(differing));
  EXPECT_EQ(differing, 0);
  EXPECT_GT(ties, 300);
}

// All ties: the bits are fair, independent from element to element and step to step, and those of the element's index
// in the whole however the whole is cut.
TEST(CpuSigns, HashedTiesAreFairAndOfTheElement) {
  constexpr int64_t kCount = 200000;
  const auto cpu = cpu::make_backend("");
  const auto bits_of = [&](uint64_t seed, uint64_t step, uint64_t first, int64_t count) {
    Bits result(testing::sign_bytes(count));
    VoteItem item;
    item.count = count, item.seed = seed, item.step = step, item.first_index = first, item.result = bytes(result);
    cpu->vote_signs(item, 1, nullptr);
    return result;
  };
  const Bits all = bits_of(7, 3, 0, kCount);
  const auto agreement = [&](const Bits& other, int64_t lag) {
    int64_t same = 0;
    for (int64_t i = 0; i + lag < kCount; ++i) same += testing::sign_of(all, i) == testing::sign_of(other, i + lag);
    return static_cast<double>(same) / static_cast<double>(kCount - lag);
  };
  int64_t plus = 0;
  for (int64_t i = 0; i < kCount; ++i) plus += testing::sign_of(all, i);
  const double fraction = static_cast<double>(plus) / kCount;
  // A fair coin is off by more than 5 standard deviations in 1 of 1.7 million cases.
  const double bound = 5 * 0.5 / std::sqrt(kCount * 0.9);
  double worst = std::abs(fraction - 0.5);
  for (const int64_t lag : {1, 2, 7, 8, 31, 32, 33, 64, 256, 1024, 4096})
    worst = std::max(worst, std::abs(agreement(all, lag) - 0.5));
  for (const auto& [seed, step] : {std::pair{7, 4}, {7, 2}, {8, 3}, {6, 3}, {3, 7}})
    worst = std::max(
        worst,
        std::abs(agreement(bits_of(static_cast<uint64_t>(seed), static_cast<uint64_t>(step), 0, kCount), 0) - 0.5));
  int64_t differing = 0, compared = 0;
  auto rng = testing::seeded("hashed ties", 83);
  for (int i = 0; i < 200; ++i) {
    const int64_t first = rng.below(kCount - 500), count = rng.between(1, 500);
    const Bits part = bits_of(7, 3, static_cast<uint64_t>(first), count);
    for (int64_t k = 0; k < count; ++k) differing += testing::sign_of(part, k) != testing::sign_of(all, first + k);
    compared += count;
  }
  std::printf(
      "%lld ties: %.5f are +, 16 correlations, the worst deviation %.5f of %.5f; %lld of %lld differ in parts\n",
      static_cast<long long>(kCount), fraction, worst, bound, static_cast<long long>(differing),
      static_cast<long long>(compared));
  EXPECT_LT(worst, bound);
  EXPECT_EQ(differing, 0);
}

TEST(CpuSigns, RefusesWhatMakesNoSense) {
  const auto cpu = cpu::make_backend("");
  alignas(8) unsigned char memory[64] = {};
  auto* bits = reinterpret_cast<std::byte*>(memory);
  int refused = 0;
  const auto refuses = [&](auto&& act, const char* part) {
    try {
      act();
      ADD_FAILURE() << part;
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kInvalidArgument);
      EXPECT_NE(std::string(error.what()).find(part), std::string::npos) << error.what();
      ++refused;
    }
  };
  const auto pack = [&](const SignItem& item) { return [&cpu, item] { cpu->pack_signs(item, nullptr); }; };
  refuses(pack({DType::kF32, -1, 8, memory, bits}), "got 8 signs from number -1");
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
  std::printf("%d items refused\n", refused);
}

}  // namespace
}  // namespace lowtide
