// Claim: master weights, packed signs, majorities, counters and the ranks' results of votes have the bits of the
// committed list. golden.h says how it is written.
#include <future>

#include "golden/cases.h"
#include "lowtide/sign.h"
#include "lowtide/sign_accumulator.h"
#include "lowtide/sign_collective.h"
#include "support/test.h"

namespace lowtide::testing {
namespace {

constexpr int kRanks = 3;
constexpr const char* kTies[] = {"hash", "plus", "minus", "zero", "previous"};

std::vector<std::byte> random_bits(uint64_t seed, size_t bytes) {
  Rng rng(seed);
  std::vector<std::byte> out(bytes);
  for (std::byte& byte : out) byte = static_cast<std::byte>(rng.next());
  return out;
}

std::string target_of(int threads) { return threads == 1 ? plainest_target() : cpu_targets().front(); }

void add_row(GoldenTable& table, const std::string& name, const GoldenHash& hash) {
  table.rows.push_back({name, {hash.text(12)}});
}

void add_masters(GoldenTable& table) {
  for (const char* master : {"residual16", "residual8", "stochastic"})
    for (const DType dtype : {DType::kBF16, DType::kF16}) {
      constexpr int64_t kCount = 5000;
      const GoldenTensor values(DType::kF32, {kCount}, {}, 3, -40, 15, 0.01);
      std::vector<uint16_t> weights(kCount), residual(kCount);
      std::vector<float> joined(kCount);
      split_master(master, dtype, reinterpret_cast<const float*>(values.data.data()), kCount, weights.data(),
                   residual.data());
      join_master(master, dtype, weights.data(), residual.data(), kCount, joined.data());
      GoldenHash hash;
      hash.add(weights), hash.add(residual), hash.add(joined);
      add_row(table, std::string("master ") + master + " " + short_name(dtype), hash);
    }
}

void add_packing(GoldenTable& table, int threads) {
  for (const DType dtype : kGoldenTypes)
    for (const sign::BitOrder order : {sign::BitOrder::kLittle, sign::BitOrder::kBig})
      for (const int64_t count : {77, 150001}) {
        GoldenTensor values(dtype, {count}, {}, 3, -6, 3, 0.1);
        std::vector<std::byte> bits(static_cast<size_t>(sign::packed_bytes(count)));
        const std::vector<std::byte> zeros = random_bits(4, bits.size());
        const sign::Options options{order, threads};
        GoldenHash hash;
        sign::pack(dtype, values.data.data(), count, bits, options);
        hash.add(bits);
        sign::unpack(bits, dtype, values.data.data(), count, zeros, options);
        hash.add(values.data);
        add_row(table,
                std::string("pack ") + short_name(dtype) + (order == sign::BitOrder::kLittle ? " little " : " big ") +
                    std::to_string(count),
                hash);
      }
}

void add_majorities(GoldenTable& table, int threads) {
  for (const bool weighted : {false, true})
    for (size_t ties = 0; ties < std::size(kTies); ++ties)
      for (const int64_t count : {77, 150001}) {
        std::vector<std::vector<std::byte>> ballots;
        std::vector<const std::byte*> rows;
        for (uint64_t voter = 0; voter < 6; ++voter) {
          ballots.push_back(random_bits(20 + voter, static_cast<size_t>(sign::packed_bytes(count))));
          rows.push_back(ballots.back().data());
        }
        const std::vector<std::byte> previous = random_bits(40, ballots[0].size());
        const uint32_t weights[] = {3, 1, 0, 2, 1, 1};
        sign::Vote vote;
        vote.count = count, vote.ballots = rows, vote.ties = static_cast<sign::Ties>(ties);
        if (weighted) vote.weights = weights;
        vote.seed = 5, vote.step = 6, vote.offset = 1024, vote.previous = previous.data();
        vote.options.threads = threads;
        std::vector<std::byte> result(ballots[0].size()), zeros(result.size());
        const bool marks = vote.ties == sign::Ties::kZero;
        sign::majority(vote, result, marks ? std::span(zeros) : std::span<std::byte>());
        GoldenHash hash;
        hash.add(result), hash.add(zeros);
        add_row(
            table,
            std::string("majority ") + (weighted ? "weighted " : "plain ") + kTies[ties] + " " + std::to_string(count),
            hash);
      }
}

void add_counters(GoldenTable& table, int threads) {
  for (const int most : {3, 40}) {
    constexpr int64_t kCount = 70001;
    SignAccumulator accumulator(kCount, most, threads);
    for (int turn = 0; turn < 3; ++turn) {
      const DType dtype = kGoldenTypes[turn];
      accumulator.add(GoldenTensor(dtype, {kCount}, {}, 50 + static_cast<uint64_t>(turn), -6, 3, 0.1).data.data(),
                      dtype);
    }
    std::vector<std::byte> bits((kCount + 7) / 8);
    std::vector<float> mean(kCount);
    GoldenHash hash;
    for (const char* ties : {"hash", "plus", "minus"}) {
      accumulator.majority(bits.data(), ties, 8, 9);
      hash.add(bits);
    }
    accumulator.mean(mean.data());
    hash.add(mean);
    add_row(table, "counters of " + std::to_string(most), hash);
  }
}

// Each rank's result, which is the same on all; the residuals of a mean differ.
template <class Fn>
GoldenHash on_ranks(Fn&& each) {
  ThreadGroup group(kRanks, std::chrono::seconds(60));
  std::vector<std::future<GoldenHash>> done;
  for (int rank = 0; rank < kRanks; ++rank)
    done.push_back(std::async(std::launch::async, [&, rank] { return each(group.transport(rank), rank); }));
  GoldenHash all;
  for (auto& hash : done) {
    const std::string text = hash.get().text(16);
    all.add(text.data(), text.size());
  }
  return all;
}

void add_collectives(GoldenTable& table, int threads) {
  constexpr int64_t kCount = 20000;
  const auto bits = static_cast<size_t>(sign_bits_bytes(kCount));
  const auto presence = static_cast<size_t>(sign_presence_bytes(kCount));
  for (const SignAlgorithm algorithm : {SignAlgorithm::kOnePhase, SignAlgorithm::kTwoPhase})
    for (const char* ties : kTies) {
      const GoldenHash hash = on_ranks([&](std::shared_ptr<Transport> transport, int rank) {
        SignCollectiveOptions options{
            .ties = ties, .seed = 3, .algorithm = algorithm, .threads = threads, .cpu_target = target_of(threads)};
        SignCollective collective(std::move(transport), options);
        const auto own = random_bits(60 + static_cast<uint64_t>(rank), bits), previous = random_bits(70, bits);
        const auto present = random_bits(80 + static_cast<uint64_t>(rank), presence);
        std::vector<std::byte> out(bits), zeros(bits), out_presence(presence);
        SignBallot ballot;
        ballot.count = kCount, ballot.bits = own.data(), ballot.presence = present.data(), ballot.weight = rank + 1;
        ballot.previous = std::string(ties) == "previous" ? previous.data() : nullptr;
        ballot.step = 4;
        SignResult result;
        result.bits = out.data(), result.presence = out_presence.data();
        result.zeros = std::string(ties) == "zero" ? zeros.data() : nullptr;
        EXPECT_TRUE(collective.vote(ballot, result).applied);
        GoldenHash mine;
        mine.add(out), mine.add(out_presence), mine.add(zeros);
        return mine;
      });
      add_row(table, std::string("vote ") + (algorithm == SignAlgorithm::kOnePhase ? "one" : "two") + "_phase " + ties,
              hash);
    }
  for (const char* state : {"fp32", "bf16", "dynamic8"}) {
    const GoldenHash hash = on_ranks([&](std::shared_ptr<Transport> transport, int rank) {
      SignCollectiveOptions options{.threads = threads, .cpu_target = target_of(threads)};
      SignCollective collective(std::move(transport), options);
      SignResidual residual(kCount, rank, kRanks, state);
      GoldenHash mine;
      for (uint64_t step = 0; step < 3; ++step) {
        const auto own = random_bits(90 + static_cast<uint64_t>(rank) + 10 * step, bits);
        std::vector<uint16_t> scales, out_scales(static_cast<size_t>(sign_scales(kCount)));
        Rng rng(91 + static_cast<uint64_t>(rank) + 10 * step);
        while (scales.size() < out_scales.size()) scales.push_back(bf16_nearest(std::fabs(rng.over_binades(-3, 3))));
        std::vector<std::byte> out(bits);
        SignBallot ballot{.count = kCount, .bits = own.data(), .scales = scales.data(), .step = step};
        SignResult result{.bits = out.data(), .scales = out_scales.data()};
        EXPECT_TRUE(collective.mean(ballot, result, residual).applied);
        mine.add(out), mine.add(out_scales);
      }
      std::vector<float> left(static_cast<size_t>(residual.count()));
      residual.read_values(left.data());
      mine.add(left);
      return mine;
    });
    add_row(table, std::string("mean ") + state, hash);
  }
}

TEST(GoldenFunctions, MastersPackingMajoritiesCountersVotes) {
  GoldenList list("functions",
                  "# Hashes of what functions without an optimizer give; tests/golden/functions_test.cpp.\n");
  for (const int threads : {1, 3}) {
    GoldenTable table{{"hash"}, {}};
    add_masters(table);
    add_packing(table, threads);
    add_majorities(table, threads);
    add_counters(table, threads);
    add_collectives(table, threads);
    list.check(table, std::to_string(threads) + " threads, " + target_of(threads));
  }
}

}  // namespace
}  // namespace lowtide::testing
