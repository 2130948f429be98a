// Tests the public functions on signs: both bit orders match the definition, results may overwrite
// ballots, invalid calls are refused, and several callers may run at the same time.
#include "lowtide/sign.h"

#include "sign/sign_on.h"
#include "support/sign_reference.h"
#include "support/test.h"

namespace lowtide::sign {
namespace {

using testing::Bits;
using testing::bytes;
using testing::expect_refusal;
using testing::random_bytes;

constexpr int64_t kLarge = (int64_t{1} << 23) + 77;  // more signs than are reversed at a time

std::span<std::byte> span_of(Bits& bits) { return {reinterpret_cast<std::byte*>(bits.data()), bits.size()}; }

// Reverses the bits of each byte one by one, independently of the library's method.
Bits turned(const Bits& bits) {
  Bits out(bits.size());
  for (size_t i = 0; i < bits.size(); ++i)
    for (int b = 0; b < 8; ++b) out[i] = static_cast<unsigned char>(out[i] | (bits[i] >> b & 1) << (7 - b));
  return out;
}

// Returns little-endian bits as a ballot with this bit order stores them.
Bits in_order(const Bits& bits, BitOrder order) { return order == BitOrder::kBig ? turned(bits) : bits; }

TEST(Sign, PacksAndUnpacksInBothOrders) {
  auto rng = testing::seeded("signs in both orders", 501);
  constexpr int kCases = 2000;
  int64_t differing = 0, elements = 0, zeros_seen = 0;
  for (int c = 0; c < kCases; ++c) {
    const bool last = c + 1 == kCases;
    const int64_t count = last ? kLarge : rng.below(400);
    const auto dtype = static_cast<DType>(rng.below(3));
    const Options options{last || rng.chance(0.5) ? BitOrder::kBig : BitOrder::kLittle, static_cast<int>(rng.below(4))};
    const Bits values = testing::random_elements(dtype, count, rng);
    Bits wanted(testing::sign_bytes(count)), bits = random_bytes(wanted.size(), rng), back(values.size());
    testing::reference_pack(dtype, values, 0, count, &wanted);
    pack(dtype, values.data(), count, span_of(bits), options);
    differing += bits != in_order(wanted, options.order);
    const Bits marks = random_bytes(bits.size(), rng);
    Bits given = in_order(marks, options.order);
    const bool marked = rng.chance(0.5);
    unpack(span_of(bits), dtype, back.data(), count, marked ? span_of(given) : std::span<std::byte>(), options);
    for (int64_t i = 0; i < count; ++i) {
      const bool zero = marked && testing::sign_of(marks, i);
      const double want = zero ? 0 : testing::sign_of(wanted, i) ? 1 : -1;
      differing += testing::value_of(dtype, back.data() + i * dtype_bytes(dtype)) != want;
      zeros_seen += zero;
    }
    elements += count;
  }
  testing::figure("{} arrays of {} elements, {} of them marked as zero: {} differ", kCases, elements, zeros_seen,
                  differing);
  EXPECT_EQ(differing, 0);
  EXPECT_GT(zeros_seen, 10000);
}

TEST(Sign, MajoritiesInBothOrdersWhereverTheResultIs) {
  auto rng = testing::seeded("majorities", 502);
  int64_t differing = 0, signs = 0, ties = 0, on_top = 0;
  constexpr int kCases = 1500;
  for (int c = 0; c < kCases; ++c) {
    const bool last = c + 1 == kCases;  // with ties decided by the hash, which is the first rule
    const int64_t count = last ? kLarge : rng.below(200);
    const auto voters = static_cast<size_t>(last ? 2 : rng.between(1, rng.chance(0.1) ? 70 : 6));
    const auto& [tie_rule, name] = testing::tie_rules()[static_cast<size_t>(last ? 0 : rng.below(5))];
    testing::ReferenceVote reference{{}, {}, name, random_bytes(testing::sign_bytes(count), rng)};
    for (size_t v = 0; v < voters; ++v) {
      reference.ballots.push_back(random_bytes(testing::sign_bytes(count), rng));
      reference.weights.push_back(last ? 1 : static_cast<uint32_t>(rng.below(4)));
    }
    const BitOrder order = last || rng.chance(0.5) ? BitOrder::kBig : BitOrder::kLittle;
    std::vector<Bits> stored;
    std::vector<const std::byte*> ballots;
    for (const Bits& ballot : reference.ballots) stored.push_back(in_order(ballot, order));
    for (const Bits& ballot : stored) ballots.push_back(bytes(ballot));
    for (size_t v = 0; v < voters; ++v)
      if (reference.weights[v] == 0 && rng.chance(0.5)) ballots[v] = nullptr;
    Bits previous = in_order(reference.previous, order), apart(previous.size()), zeros = apart, hash = apart;
    Vote vote{count, ballots, reference.weights, static_cast<Ties>(tie_rule)};
    vote.seed = rng.next(), vote.step = rng.next(), vote.offset = rng.next();
    vote.options = {order, static_cast<int>(rng.below(3))};
    vote.previous = vote.ties == Ties::kPrevious ? bytes(previous) : nullptr;
    // Only the backend defines the hash.
    VoteItem nobody{};
    nobody.count = count, nobody.seed = vote.seed, nobody.step = vote.step, nobody.first_index = vote.offset;
    nobody.result = span_of(hash).data();
    host_backend().vote_signs(nobody, 1, nullptr);
    const bool over = rng.chance(0.5);
    Bits& result = !over ? apart : vote.ties == Ties::kPrevious && rng.chance(0.5) ? previous : stored[0];
    on_top += over;
    majority(vote, span_of(result), vote.ties == Ties::kZero ? span_of(zeros) : std::span<std::byte>());
    Bits wanted, tied;
    ties += reference.count(count, &wanted, &tied, [&](int64_t i) { return testing::sign_of(hash, i); });
    differing += result != in_order(wanted, order);
    if (vote.ties == Ties::kZero) differing += zeros != in_order(tied, order);
    signs += count;
  }
  testing::figure("{} votes on {} signs, {} ties, {} results on top of what they came from: {} differ", kCases, signs,
                  ties, on_top, differing);
  EXPECT_EQ(differing, 0);
  EXPECT_GT(ties, 5000);
  EXPECT_GT(on_top, 500);
}

TEST(Sign, RefusesWhatMakesNoSense) {
  std::vector<float> values(20, -1.f);
  Bits bits(3, 0x5a), more(4, 0x5a);
  const auto pack_with = [&](DType dtype, int64_t count, Bits& out, Options options = {}) {
    pack(dtype, values.data(), count, span_of(out), options);
  };
  expect_refusal([&] { pack_with(DType::kF32, 20, more); }, "got 4 bytes of bits for 20 signs, wanted 3");
  expect_refusal([&] { pack_with(DType::kF32, -1, bits); }, "got -1 signs");
  expect_refusal([&] { pack_with(static_cast<DType>(7), 20, bits); }, "got element type 7, wanted float32");
  expect_refusal([&] { pack_with(DType::kF32, 20, bits, {static_cast<BitOrder>(2)}); }, "got bit order 2");
  expect_refusal([&] { pack_with(DType::kF32, 20, bits, {BitOrder::kBig, -1}); }, "got threads=-1");
  expect_refusal([&] { pack(DType::kF32, nullptr, 20, span_of(bits)); }, "got no values for 20 signs");
  expect_refusal([&] { pack(DType::kF32, values.data(), 20, {static_cast<std::byte*>(nullptr), 3}); }, "got NULL");
  auto* const raw = reinterpret_cast<std::byte*>(values.data());
  expect_refusal([&] { pack(DType::kF32, raw + 1, 19, span_of(bits)); }, "aligned to an element");
  expect_refusal([&] { pack(DType::kF32, values.data(), 20, {raw + 77, 3}); }, "got bits that share memory");
  expect_refusal([&] { unpack({raw, 3}, DType::kF32, values.data(), 20); }, "got bits that share memory");
  expect_refusal([&] { unpack(span_of(bits), DType::kF32, values.data(), 20, {raw + 4, 3}); }, "got zeros that share");
  expect_refusal([&] { unpack(span_of(bits), DType::kF32, values.data(), 20, span_of(more)); }, "4 bytes of zeros");
  // This call passes a number of elements instead of a number of bytes.
  expect_refusal([&] { unpack({raw, 20}, DType::kF32, values.data(), 20); }, "got 20 bytes of bits for 20 signs");

  Bits result(3, 0x5a), zeros(3, 0x5a);
  const std::vector<const std::byte*> ballots = {bytes(bits), nullptr};
  const std::vector<uint32_t> one = {1}, absent = {1, 0}, huge = {1u << 31, 0};
  const auto vote_with = [&](std::span<const uint32_t> weights, Ties ties, std::span<std::byte> marks,
                             BitOrder order = BitOrder::kLittle) {
    Vote vote{20, ballots, weights, ties};
    vote.options.order = order;
    majority(vote, span_of(result), marks);
  };
  for (const BitOrder order : {BitOrder::kLittle, BitOrder::kBig}) {
    expect_refusal([&] { vote_with({}, Ties::kHash, {}, order); }, "got no ballot from voter 1, whose weight is 1");
    expect_refusal([&] { vote_with(one, Ties::kHash, {}, order); }, "got 1 weights for 2 ballots");
    expect_refusal([&] { vote_with(huge, Ties::kHash, {}, order); }, "2147483648 votes");
    expect_refusal([&] { vote_with(absent, static_cast<Ties>(9), {}, order); }, "got tie rule 9");
    expect_refusal([&] { vote_with(absent, Ties::kZero, {}, order); }, "got 0 bytes of zeros");
    expect_refusal([&] { vote_with(absent, Ties::kPlus, span_of(zeros), order); },
                   "wanted none: only rule 'zero' marks zeros");
    expect_refusal([&] { vote_with(absent, Ties::kZero, span_of(result), order); }, "got zeros that share memory");
    expect_refusal([&] { vote_with(absent, Ties::kZero, span_of(bits), order); }, "got zeros that share memory");
    expect_refusal([&] { vote_with(absent, Ties::kPrevious, {}, order); }, "got no earlier result");
  }
  expect_refusal([&] { majority({20, {}}, span_of(result)); }, "got 0 ballots, wanted 1 to 65535");
  const std::vector<const std::byte*> crowd(65536, bytes(bits));
  expect_refusal([&] { majority({20, crowd}, span_of(result)); }, "got 65536 ballots");
  Bits shifted(5, 0x5a);
  const std::vector<const std::byte*> part = {bytes(shifted) + 1};
  expect_refusal([&] { majority({20, part}, span_of(shifted).first(3)); }, "got ballots that share memory");
  EXPECT_EQ(bits, Bits(3, 0x5a)) << "a refused call has written";
  EXPECT_EQ(result, bits);
  EXPECT_EQ(zeros, bits);
  EXPECT_EQ(values, std::vector<float>(20, -1.f));
}

TEST(Sign, ManyCallersAtATime) {
  auto rng = testing::seeded("callers", 503);
  constexpr int kCallers = 4, kRounds = 200;
  constexpr int64_t kCount = 70001;
  std::vector<Bits> values, wanted(kCallers, Bits(testing::sign_bytes(kCount)));
  for (int t = 0; t < kCallers; ++t) {
    values.push_back(testing::random_elements(DType::kBF16, kCount, rng));
    testing::reference_pack(DType::kBF16, values.back(), 0, kCount, &wanted[static_cast<size_t>(t)]);
  }
  std::atomic<int> wrong{0};
  std::vector<std::thread> callers;
  for (size_t t = 0; t < kCallers; ++t)
    callers.emplace_back([&, t] {
      for (int round = 0; round < kRounds; ++round) {
        Bits bits(wanted[t].size()), vote = bits;
        pack(DType::kBF16, values[t].data(), kCount, span_of(bits), {BitOrder::kLittle, 2});
        const std::vector<const std::byte*> ballots = {bytes(bits), bytes(wanted[(t + 1) % kCallers]), bytes(bits)};
        majority({kCount, ballots}, span_of(vote));
        wrong += bits != wanted[t] || vote != wanted[t];
      }
    });
  for (std::thread& caller : callers) caller.join();
  testing::figure("{} threads, {} packs and votes of {} signs each: {} wrong", kCallers, kRounds, kCount, wrong.load());
  EXPECT_EQ(wrong, 0);
}

}  // namespace
}  // namespace lowtide::sign
