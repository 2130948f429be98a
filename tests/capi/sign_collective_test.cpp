// The sign collective's C interface: votes and means through C functions, and what it says when they fail.
#include "lowtide/lowtide_sign_collective.h"

#include <future>

#include "lowtide/sign_collective.h"
#include "support/test.h"

namespace lowtide::testing {
namespace {

static_assert(sizeof(lt_sign_ballot) % 8 == 0 && sizeof(lt_sign_result) % 8 == 0 && sizeof(lt_sign_outcome) % 8 == 0 &&
              sizeof(lt_sign_transport) % 8 == 0 && sizeof(lt_sign_collective_options) % 8 == 0);
static_assert(LT_SIGN_AUTO == static_cast<int>(SignAlgorithm::kAuto) &&
              LT_SIGN_ONE_PHASE == static_cast<int>(SignAlgorithm::kOnePhase) &&
              LT_SIGN_TWO_PHASE == static_cast<int>(SignAlgorithm::kTwoPhase));

int32_t all_to_all(void* context, const void* send, void* receive, int64_t bytes) {
  auto& transport = *static_cast<Transport*>(context);
  transport.all_to_all(static_cast<const std::byte*>(send), static_cast<std::byte*>(receive), bytes);
  return 0;
}
int32_t all_gather(void* context, const void* send, void* receive, int64_t bytes) {
  auto& transport = *static_cast<Transport*>(context);
  transport.all_gather(static_cast<const std::byte*>(send), static_cast<std::byte*>(receive), bytes);
  return 0;
}
int32_t refuse(void*, const void*, void*, int64_t) { return ECONNRESET; }

lt_sign_transport through(Transport& transport) {
  lt_sign_transport out = LT_SIGN_TRANSPORT_INIT;
  out.rank = transport.rank(), out.size = transport.size();
  out.context = &transport;
  out.all_to_all = all_to_all, out.all_gather = all_gather;
  return out;
}

template <class Fn>
void on_ranks(int ranks, Fn&& fn) {
  std::vector<std::future<void>> done;
  for (int r = 0; r < ranks; ++r) done.push_back(std::async(std::launch::async, [&fn, r] { fn(r); }));
  for (auto& each : done) each.get();
}

TEST(CSignCollective, VotesAndMeans) {
  constexpr int kRanks = 3;
  constexpr int64_t kCount = 2500;
  Rng rng(1);
  ThreadGroup group(kRanks, std::chrono::seconds(60));
  std::vector<std::vector<uint8_t>> bits(kRanks, std::vector<uint8_t>((kCount + 7) / 8));
  for (auto& row : bits)
    for (auto& byte : row) byte = static_cast<uint8_t>(rng.next());
  int64_t looked = 0;
  std::vector<std::vector<uint8_t>> results(kRanks, bits[0]), means(kRanks, bits[0]);
  on_ranks(kRanks, [&](int r) {
    const auto at = static_cast<size_t>(r);
    const auto transport = group.transport(r);
    const lt_sign_transport through_c = through(*transport);
    lt_sign_collective_options options = LT_SIGN_COLLECTIVE_OPTIONS_INIT;
    options.algorithm = LT_SIGN_TWO_PHASE;
    lt_sign_collective* collective = nullptr;
    ASSERT_EQ(lt_sign_collective_create(&through_c, nullptr, &options, &collective), LT_OK) << lt_last_error();
    lt_sign_ballot ballot = LT_SIGN_BALLOT_INIT;
    ballot.count = kCount, ballot.bits = bits[at].data();
    lt_sign_result result = LT_SIGN_RESULT_INIT;
    result.bits = results[at].data();
    lt_sign_outcome outcome = LT_SIGN_OUTCOME_INIT;
    ASSERT_EQ(lt_sign_vote(collective, &ballot, &result, &outcome), LT_OK) << lt_last_error();
    EXPECT_TRUE(outcome.applied == 1 && outcome.algorithm == LT_SIGN_TWO_PHASE && outcome.rejected_count == 0);
    EXPECT_GT(outcome.payload_sent, 2 * 2 * kCount / 8 / kRanks);

    // The same in two parts, twice. Ranks announce twice where the vote before was another, and with ballots where not.
    std::vector<uint8_t> parts(results[at].size());
    for (const int call : {0, 1, 2, 3}) {
      const int part = call % 2;
      lt_sign_ballot piece = ballot;
      piece.part = part, piece.more = part == 0;
      piece.count = part ? kCount - 1024 : 1024;
      piece.bits = bits[at].data() + part * 128;
      piece.first_index = static_cast<uint64_t>(part) * 1024;
      lt_sign_result there = LT_SIGN_RESULT_INIT;
      there.bits = parts.data() + part * 128;
      ASSERT_EQ(lt_sign_vote(collective, &piece, &there, &outcome), LT_OK) << lt_last_error();
      EXPECT_EQ(outcome.control_sent, (part ? 3 : call ? 1 : 2) * 2 * 128);
    }
    EXPECT_EQ(parts, results[at]);

    std::vector<uint16_t> scales(3, static_cast<uint16_t>(0x3f80 + 0x80 * r)), mean_scales(3);
    lt_sign_residual* residual = nullptr;
    int64_t first = -1, count = -1, bytes = -1;
    ASSERT_EQ(lt_sign_residual_create(kCount, r, kRanks, "fp32", &residual), LT_OK);
    ASSERT_EQ(lt_sign_residual_shape(residual, &first, &count, &bytes), LT_OK);
    EXPECT_TRUE(first == r * 1024 && count == std::min<int64_t>(1024, kCount - first) && bytes == 4 * count);
    ballot.scales = scales.data();
    result.bits = means[at].data(), result.scales = mean_scales.data();
    ASSERT_EQ(lt_sign_mean(collective, &ballot, &result, residual, nullptr), LT_OK) << lt_last_error();
    EXPECT_GT(mean_scales[2], 0);
    std::vector<float> values(static_cast<size_t>(count));
    ASSERT_EQ(lt_sign_residual_read_values(residual, values.data()), LT_OK);
    std::vector<char> stored(static_cast<size_t>(bytes));
    ASSERT_EQ(lt_sign_residual_read(residual, stored.data()), LT_OK);
    EXPECT_EQ(std::memcmp(stored.data(), values.data(), stored.size()), 0);
    ASSERT_EQ(lt_sign_residual_replace(residual, stored.data()), LT_OK);
    ASSERT_EQ(lt_sign_residual_replace_values(residual, values.data()), LT_OK);

    // An error on rank 1 stops the others, too, and tells them why.
    ballot.scales = nullptr;
    if (r == 1) ballot.struct_size = 3;
    outcome = LT_SIGN_OUTCOME_INIT;
    const lt_status status = lt_sign_vote(collective, &ballot, &result, &outcome);
    EXPECT_EQ(status, r == 1 ? LT_INVALID_ARGUMENT : LT_OK);
    if (r != 1) {
      EXPECT_TRUE(!outcome.applied && outcome.failed_count == 1 && outcome.failed[0] == 1);
    }
    ballot.struct_size = sizeof ballot;
    EXPECT_EQ(lt_sign_mean(collective, &ballot, &result, r == 1 ? nullptr : residual, &outcome), LT_INVALID_ARGUMENT);

    // Ranks that differ.
    ballot.step = r == 2 ? 8 : 7;
    EXPECT_EQ(lt_sign_vote(collective, &ballot, &result, nullptr), LT_INVALID_ARGUMENT);
    EXPECT_NE(std::string(lt_last_error()).find("step: got 7 on ranks 0 and 1, 8 on rank 2"), std::string::npos)
        << lt_last_error();
    const int32_t* ranks = nullptr;
    ASSERT_EQ(lt_sign_collective_error_ranks(collective, &ranks, &count), LT_OK);
    EXPECT_TRUE(count == 1 && ranks[0] == 2);
    lt_sign_residual_destroy(residual);
    lt_sign_collective_destroy(collective);
  });
  for (int64_t i = 0; i < kCount; ++i, ++looked) {
    int sum = 0;
    for (const auto& row : bits) sum += row[static_cast<size_t>(i / 8)] >> (i % 8) & 1;
    for (const auto& result : results) ASSERT_EQ(result[static_cast<size_t>(i / 8)] >> (i % 8) & 1, sum >= 2);
  }
  EXPECT_TRUE(means[0] == means[1] && means[1] == means[2]);
  figure("{} signs voted on through C functions on {} ranks", looked, kRanks);
}

TEST(CSignCollective, SaysWhyItFailed) {
  lt_sign_transport transport = LT_SIGN_TRANSPORT_INIT;
  lt_sign_collective* collective = nullptr;
  EXPECT_EQ(lt_sign_collective_create(nullptr, nullptr, nullptr, &collective), LT_INVALID_ARGUMENT);
  EXPECT_EQ(lt_sign_collective_create(&transport, nullptr, nullptr, &collective), LT_INVALID_ARGUMENT);
  EXPECT_STREQ(lt_last_error(), "got no all_to_all");
  transport.size = 2;
  transport.all_to_all = transport.all_gather = refuse;
  lt_sign_collective_options options = LT_SIGN_COLLECTIVE_OPTIONS_INIT;
  options.ties = "coin";
  EXPECT_EQ(lt_sign_collective_create(&transport, nullptr, &options, &collective), LT_INVALID_ARGUMENT);
  EXPECT_STREQ(lt_last_error(), "got ties='coin', wanted one of hash, plus, minus, zero, previous");
  EXPECT_EQ(collective, nullptr);
  ASSERT_EQ(lt_sign_collective_create(&transport, nullptr, nullptr, &collective), LT_OK);
  const uint8_t bits = 1;
  uint8_t out = 0xa5;
  lt_sign_ballot ballot = LT_SIGN_BALLOT_INIT;
  ballot.count = 8, ballot.bits = &bits;
  lt_sign_result result = LT_SIGN_RESULT_INIT;
  result.bits = &out;
  EXPECT_EQ(lt_sign_vote(collective, &ballot, &result, nullptr), LT_IO_ERROR);
  EXPECT_EQ(lt_last_os_error(), ECONNRESET);
  expect_in("all_gather of the caller's transport returned", std::string(lt_last_error()));
  EXPECT_EQ(out, 0xa5);
  EXPECT_EQ(lt_sign_vote(nullptr, &ballot, &result, nullptr), LT_INVALID_ARGUMENT);
  lt_sign_collective_destroy(collective);
  lt_sign_collective_destroy(nullptr);
  lt_sign_residual* residual = nullptr;
  EXPECT_EQ(lt_sign_residual_create(8, 0, 1, "int3", &residual), LT_INVALID_ARGUMENT);
  EXPECT_EQ(lt_sign_residual_create(8, 1, 1, "bf16", &residual), LT_INVALID_ARGUMENT);
  EXPECT_EQ(lt_sign_residual_shape(nullptr, nullptr, nullptr, nullptr), LT_INVALID_ARGUMENT);
  lt_sign_residual_destroy(nullptr);
}

}  // namespace
}  // namespace lowtide::testing
