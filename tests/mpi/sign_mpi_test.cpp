// The sign collective over MPI, as a program of an MPI user; run by mpirun on 4 ranks. Votes in every algorithm against
// the definition, and on 2 nodes of 2; ranks that differ; a rank that stays away. Returns 0 and prints its figures on
// rank 0 if all is well.
#include "lowtide/sign_mpi.h"

#include <chrono>
#include <cstdio>
#include <string>
#include <thread>

#include "support/random.h"
#include "support/sign_reference.h"

namespace {

using lowtide::testing::Bits;

int failures = 0;
void expect(bool fine, const char* what, int rank) {
  if (fine) return;
  ++failures;
  std::fprintf(stderr, "rank %d: %s\n", rank, what);
}

const std::byte* as_bytes(const Bits& bits) { return reinterpret_cast<const std::byte*>(bits.data()); }

// All ranks draw all rows, each brings its own.
int64_t votes(lowtide::SignCollective& collective, uint64_t seed) {
  lowtide::testing::Rng rng(seed);
  const int rank = collective.rank(), size = collective.size();
  int64_t cases = 0;
  for (; cases < 60; ++cases) {
    const int64_t count = rng.below(cases % 10 ? 5000 : 200000);
    lowtide::testing::ReferenceVote reference;
    reference.ties = "kPlus";
    for (int r = 0; r < size; ++r) {
      reference.ballots.emplace_back(lowtide::testing::sign_bytes(count));
      for (auto& byte : reference.ballots.back()) byte = static_cast<unsigned char>(rng.next());
      reference.weights.push_back(static_cast<uint32_t>(rng.between(r == 0, 3)));
    }
    Bits wanted, tied, result(lowtide::testing::sign_bytes(count), 0xa5);
    reference.count(count, &wanted, &tied, [](int64_t) { return false; });
    lowtide::SignBallot ballot;
    ballot.count = count, ballot.step = static_cast<uint64_t>(cases);
    ballot.bits = as_bytes(reference.ballots[static_cast<size_t>(rank)]);
    ballot.weight = reference.weights[static_cast<size_t>(rank)];
    const lowtide::SignOutcome outcome =
        collective.vote(ballot, {reinterpret_cast<std::byte*>(result.data()), nullptr, nullptr, nullptr});
    expect(outcome.applied && result == wanted, "a vote differs from its definition", rank);
  }
  return cases;
}

int run() {
  int rank = 0, size = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  const auto world = std::make_shared<lowtide::MpiTransport>(MPI_COMM_WORLD, std::chrono::seconds(60));
  int64_t cases = 0;
  for (const auto algorithm :
       {lowtide::SignAlgorithm::kAuto, lowtide::SignAlgorithm::kOnePhase, lowtide::SignAlgorithm::kTwoPhase}) {
    lowtide::SignCollectiveOptions options;
    options.ties = "plus", options.algorithm = algorithm, options.threads = 1;
    lowtide::SignCollective collective(world, options);
    cases += votes(collective, 1);
  }
  if (size % 2 == 0) {
    MPI_Comm inside, between;
    MPI_Comm_split(MPI_COMM_WORLD, rank / 2, rank, &inside);
    MPI_Comm_split(MPI_COMM_WORLD, rank % 2, rank, &between);
    lowtide::SignCollectiveOptions options;
    options.ties = "plus", options.threads = 1;
    {
      lowtide::SignCollective collective(std::make_shared<lowtide::MpiTransport>(inside),
                                         std::make_shared<lowtide::MpiTransport>(between), options);
      expect(collective.rank() == rank && collective.size() == size, "ranks of nodes differ from those of all", rank);
      cases += votes(collective, 2);
    }
    MPI_Comm_free(&inside);
    MPI_Comm_free(&between);
  }
  try {
    lowtide::SignCollective collective(world);
    lowtide::SignBallot ballot;
    ballot.step = rank == size - 1;
    (void)collective.vote(ballot, {});
    expect(size == 1, "ranks that differ were not refused", rank);
  } catch (const lowtide::CollectiveError& e) {
    expect(e.ranks() == std::vector<int>{size - 1}, e.what(), rank);
  }
  try {
    const std::byte none{};
    std::byte out{};
    world->all_gather(&none, &out, int64_t{1} << 31);
    expect(false, "2^31 bytes were not refused", rank);
  } catch (const lowtide::TransportError&) {
  }
  // The last rank comes late: the others give up in time.
  int64_t gave_up = 0;
  {
    lowtide::MpiTransport hasty(MPI_COMM_WORLD, std::chrono::milliseconds(300));
    std::vector<std::byte> mine(1000), all(1000 * static_cast<size_t>(size));
    if (rank == size - 1) std::this_thread::sleep_for(std::chrono::milliseconds(1500));
    try {
      hasty.all_gather(mine.data(), all.data(), 1000);
      expect(rank == size - 1 || size == 1, "a rank that did not come went unseen", rank);
    } catch (const lowtide::TransportError&) {
      gave_up = 1;
      try {
        hasty.all_gather(mine.data(), all.data(), 1000);
        expect(false, "a call was made behind one that is under way", rank);
      } catch (const lowtide::TransportError&) {
      }
    }
  }
  expect(gave_up == (rank < size - 1), "who gave up is not who waited", rank);
  if (rank == 0)
    std::printf(
        "[ checks ] MPI, %d ranks: %lld votes as defined in each of 3 algorithms%s; ranks that differ, 2^31 bytes and "
        "a rank that is late are refused\n",
        size, static_cast<long long>(cases), size % 2 == 0 ? " and on nodes of 2" : "");
  return failures;
}

}  // namespace

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  int failed = 1;
  try {
    failed = run();
  } catch (const std::exception& e) {
    std::fprintf(stderr, "%s\n", e.what());
    MPI_Abort(MPI_COMM_WORLD, 1);
  }
  MPI_Finalize();
  return failed ? 1 : 0;
}
