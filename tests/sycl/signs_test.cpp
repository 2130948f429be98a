// Signs on the device, on the CPU, and by their definition: one at a time, the same bits.
#include <bit>
#include <limits>

#include "support/sign_reference.h"
#include "sycl/sycl_support.h"

namespace lowtide {
namespace {

using testing::Bits;
using testing::DeviceBytes;
using testing::SyclDevice;

std::byte* bytes(Bits& bits) { return reinterpret_cast<std::byte*>(bits.data()); }

Bits random_bits(size_t size, testing::Rng& rng) {
  Bits out(size);
  for (auto& byte : out) byte = static_cast<unsigned char>(rng.next());
  return out;
}

int64_t differing_bits(const Bits& a, const Bits& b) {
  int64_t differing = 0;
  for (size_t i = 0; i < a.size(); ++i) differing += std::popcount(static_cast<unsigned>(a[i] ^ b[i]));
  return differing;
}

// Lengths around words, groups and launches.
int64_t some_count(testing::Rng& rng) {
  return rng.chance(0.01) ? rng.between(20000, 70000) : rng.chance(0.5) ? rng.below(70) : rng.below(1500);
}

TEST(SyclSigns, PackingAndUnpackingGiveTheBitsOfTheCpu) {
  LT_NEEDS_SYCL();
  auto rng = testing::seeded("packing on the device", 91);
  SyclDevice& sycl = SyclDevice::get();
  const auto cpu = open_backend("cpu", "");
  constexpr int kCases = 4000;
  int64_t from_cpu = 0, from_definition = 0, back_differing = 0, elements = 0, plus = 0;
  for (int c = 0; c < kCases; ++c) {
    const auto dtype = static_cast<DType>(rng.below(3));
    const int64_t first = rng.chance(0.3) ? 0 : rng.below(300), count = some_count(rng);
    const size_t misaligned = static_cast<size_t>(rng.below(8));
    Bits values = testing::random_elements(dtype, count, rng);
    const Bits before = random_bits(misaligned + testing::sign_bytes(first + count) + 1, rng);
    Bits on_cpu = before, wanted = before, got = before;
    cpu->pack_signs({dtype, first, count, values.data(), bytes(on_cpu) + misaligned}, nullptr);
    Bits tail(wanted.begin() + static_cast<ptrdiff_t>(misaligned), wanted.end());
    testing::reference_pack(dtype, values, first, count, &tail);
    std::copy(tail.begin(), tail.end(), wanted.begin() + static_cast<ptrdiff_t>(misaligned));

    DeviceBytes there(values.data(), values.size(), *sycl.queue), packed(got.data(), got.size(), *sycl.queue);
    SignItem item{dtype, first, count, there.data(), packed.data() + misaligned};
    sycl.backend->pack_signs(item, sycl.queue.get());
    packed.get(got.data());
    from_cpu += differing_bits(got, on_cpu), from_definition += differing_bits(got, wanted);

    Bits marks = random_bits(got.size(), rng), back(values.size()), cpu_back(values.size());
    DeviceBytes device_marks(marks.data(), marks.size(), *sycl.queue);
    const bool marked = rng.chance(0.3);
    item.zeros = marked ? device_marks.data() + misaligned : nullptr;
    sycl.backend->unpack_signs(item, sycl.queue.get());
    there.get(back.data());
    cpu->unpack_signs({dtype, first, count, cpu_back.data(), bytes(on_cpu) + misaligned,
                       marked ? bytes(marks) + misaligned : nullptr},
                      nullptr);
    back_differing += differing_bits(back, cpu_back);
    elements += count;
    for (int64_t i = 0; i < count; ++i) plus += testing::sign_of(tail, first + i);
  }
  std::printf(
      "%d pieces of %lld elements, %lld of them +: bits that differ: %lld from the CPU's, %lld from the "
      "definition's, %lld unpacked\n",
      kCases, static_cast<long long>(elements), static_cast<long long>(plus), static_cast<long long>(from_cpu),
      static_cast<long long>(from_definition), static_cast<long long>(back_differing));
  EXPECT_EQ(from_cpu + from_definition + back_differing, 0);
  EXPECT_GT(plus, elements / 3);
  EXPECT_LT(plus, elements * 2 / 3);
}

TEST(SyclSigns, VotesGiveTheBitsOfTheCpu) {
  LT_NEEDS_SYCL();
  auto rng = testing::seeded("votes on the device", 92);
  SyclDevice& sycl = SyclDevice::get();
  const auto cpu = open_backend("cpu", "");
  constexpr int kCases = 7000;
  // Ballots lie in one piece of device memory, whose guards are then looked at once; so do the outputs.
  int64_t from_cpu = 0, from_definition = 0, signs = 0, ties = 0, weighted = 0, absent = 0, in_place = 0;
  int64_t by_rule[8] = {};
  for (int c = 0; c < kCases; ++c) {
    const int64_t count = rng.chance(0.6) ? rng.below(70) : rng.below(600);
    const auto voters = static_cast<size_t>(rng.chance(0.05) ? rng.between(30, 300) : rng.below(10));
    const auto& [rule, name] = testing::tie_rules()[static_cast<size_t>(rng.below(std::ssize(testing::tie_rules())))];
    const size_t row = testing::sign_bytes(count), stride = row + static_cast<size_t>(rng.below(5));
    testing::ReferenceVote vote{{}, {}, name, random_bits(row, rng)};
    Bits all = random_bits(voters * stride + 1, rng);
    for (size_t v = 0; v < voters; ++v) {
      // Contradictions make ties.
      if (v % 2 && rng.chance(0.5))
        for (size_t b = 0; b < row; ++b) all[v * stride + b] = static_cast<unsigned char>(~all[(v - 1) * stride + b]);
      const auto at = all.begin() + static_cast<ptrdiff_t>(v * stride);
      vote.ballots.emplace_back(at, at + static_cast<ptrdiff_t>(row));
    }
    const bool with_weights = rng.chance(0.5);
    const int64_t most = rng.chance(0.2) ? (int64_t{1} << 31) / (std::ssize(vote.ballots) + 1) - 1 : 5;
    for (size_t v = 0; v < voters; ++v)
      vote.weights.push_back(with_weights ? static_cast<uint32_t>(rng.below(most + 1)) : 1);
    weighted += with_weights;

    Bits out = random_bits(2 * row + 2, rng), cpu_out = out, cpu_ballots = all;
    DeviceBytes ballots(all.data(), all.size(), *sycl.queue), outputs(out.data(), out.size(), *sycl.queue);
    DeviceBytes previous(vote.previous.data(), row, *sycl.queue);
    const bool over_a_ballot = voters && rng.chance(0.2);
    in_place += over_a_ballot;
    VoteItem item;
    item.count = count, item.ties = rule, item.seed = rng.next(), item.step = rng.next();
    item.first_index = rng.chance(0.5) ? static_cast<uint64_t>(rng.below(1000)) : rng.next() >> 1;
    if (with_weights) item.weights = vote.weights;
    const auto run = [&](Backend& on, std::byte* rows, std::byte* results, const std::byte* before, void* queue) {
      std::vector<const std::byte*> pointers;
      for (size_t v = 0; v < voters; ++v) {
        pointers.push_back(vote.weights[v] ? rows + v * stride : nullptr);
        absent += !vote.weights[v];
      }
      VoteItem mine = item;
      mine.ballots = pointers, mine.previous = before, mine.zeros = results + row + 1;
      mine.result = over_a_ballot ? rows : results;
      on.vote_signs(mine, 1, queue);
    };
    run(*cpu, bytes(cpu_ballots), bytes(cpu_out), bytes(vote.previous), nullptr);
    run(*sycl.backend, ballots.data(), outputs.data(), row ? previous.data() : nullptr, sycl.queue.get());
    Bits got = out, got_ballots = all;
    outputs.get(got.data()), ballots.get(got_ballots.data());
    from_cpu += differing_bits(got, cpu_out) + differing_bits(got_ballots, cpu_ballots);

    // Ties of the hash by a vote of nobody, which is all ties.
    Bits hashed(row), result, tied;
    VoteItem nobody = item;
    nobody.weights = {}, nobody.ties = TieRule::kHash, nobody.result = bytes(hashed);
    cpu->vote_signs(nobody, 1, nullptr);
    const int64_t here = vote.count(count, &result, &tied, [&](int64_t i) { return testing::sign_of(hashed, i); });
    const unsigned char* const results = over_a_ballot ? got_ballots.data() : got.data();
    from_definition += differing_bits(Bits(results, results + row), result);
    if (rule == TieRule::kZero)
      from_definition += differing_bits(
          {got.begin() + static_cast<ptrdiff_t>(row) + 1, got.begin() + static_cast<ptrdiff_t>(2 * row) + 1}, tied);
    ties += here, by_rule[static_cast<size_t>(rule)] += here, signs += count;
  }
  std::printf("%d votes on %lld signs, %lld weighted, %lld ballots absent, %lld in place; %lld ties:", kCases,
              static_cast<long long>(signs), static_cast<long long>(weighted), static_cast<long long>(absent / 2),
              static_cast<long long>(in_place), static_cast<long long>(ties));
  for (const auto& [rule, name] : testing::tie_rules()) {
    std::printf(" %lld %s", static_cast<long long>(by_rule[static_cast<size_t>(rule)]), name.c_str());
    EXPECT_GT(by_rule[static_cast<size_t>(rule)], 1000);
  }
  std::printf("; bits that differ: %lld from the CPU's, %lld from the definition's\n", static_cast<long long>(from_cpu),
              static_cast<long long>(from_definition));
  EXPECT_EQ(from_cpu, 0);
  EXPECT_EQ(from_definition, 0);
}

// What the backend cannot do is said before anything is queued, in the CPU backend's words.
TEST(SyclSigns, RefusesWhatMakesNoSense) {
  LT_NEEDS_SYCL();
  SyclDevice& sycl = SyclDevice::get();
  SignItem item{DType::kF32, 0, 8, nullptr, nullptr};
  EXPECT_NE(testing::message_of(ErrorKind::kInvalidArgument, [&] { sycl.backend->pack_signs(item, nullptr); })
                .find("got no values"),
            std::string::npos);
  VoteItem vote;
  vote.count = 8;
  EXPECT_NE(testing::message_of(ErrorKind::kInvalidArgument, [&] { sycl.backend->vote_signs(vote, 1, nullptr); })
                .find("no memory for the result"),
            std::string::npos);
}

}  // namespace
}  // namespace lowtide
