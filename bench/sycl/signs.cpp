// Signs on a SYCL device against the device's own copy of the same floats: packing reads as much and writes a 32nd.
// Rounds are interleaved; medians.
//   sycl_signs [gpu|cpu] [millions of elements, 32] [rounds, 15]
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "backend/registry.h"

namespace {

using namespace lowtide;

struct Row {
  const char* name;
  double bytes;  // read and written
  std::function<void()> run;
  std::vector<double> seconds;
  double median() {
    std::nth_element(seconds.begin(), seconds.begin() + static_cast<std::ptrdiff_t>(seconds.size() / 2), seconds.end());
    return seconds[seconds.size() / 2];
  }
};

void run(const std::string& target, int64_t count, int rounds) {
  constexpr int kVoters = 8;
  const auto backend = open_backend("sycl", target);
  Device& device = *backend->device();
  const int64_t row = (count + 7) / 8;
  const DeviceBytes floats(device, MemoryKind::kDevice, 4 * count), copy(device, MemoryKind::kDevice, 4 * count);
  const DeviceBytes bits(device, MemoryKind::kDevice, (kVoters + 1) * row);
  std::mt19937 random(1);
  std::vector<float> values(static_cast<size_t>(count));
  for (float& value : values) value = static_cast<float>(static_cast<int32_t>(random()));
  device.copy(nullptr, floats.data(), values.data(), 4 * count);
  std::vector<const std::byte*> ballots;
  for (int v = 0; v < kVoters; ++v) ballots.push_back(bits.data() + (v + 1) * row);
  device.fill(nullptr, bits.data(), 0x5a, 1, (kVoters + 1) * row);

  const auto item = [&](DType dtype, std::byte* at) { return SignItem{dtype, 0, count, at, bits.data()}; };
  const double n = static_cast<double>(count), packed = n / 8;
  std::vector<Row> rows = {
      {"q.memcpy", 8 * n, [&] { device.copy(nullptr, copy.data(), floats.data(), 4 * count); }, {}},
      {"pack float32", 4 * n + packed, [&] { backend->pack_signs(item(DType::kF32, floats.data()), nullptr); }, {}},
      {"pack bfloat16", 2 * n + packed, [&] { backend->pack_signs(item(DType::kBF16, floats.data()), nullptr); }, {}},
      {"unpack float32", 4 * n + packed, [&] { backend->unpack_signs(item(DType::kF32, copy.data()), nullptr); }, {}},
      {"unpack bfloat16", 2 * n + packed, [&] { backend->unpack_signs(item(DType::kBF16, copy.data()), nullptr); }, {}},
      {"vote of 8",
       (kVoters + 1) * packed,
       [&] {
         VoteItem vote;
         vote.count = count, vote.ballots = ballots, vote.result = bits.data();
         backend->vote_signs(vote, 1, nullptr);
       },
       {}},
      {"fill, 4 bytes", 4 * n, [&] { device.fill(nullptr, copy.data(), 0x3f800000u, 4, count); }, {}},
      {"fill, 1 byte", 4 * n, [&] { device.fill(nullptr, copy.data(), 1, 1, 4 * count); }, {}},
  };
  const auto timed = [&](Row& r) {
    const auto start = std::chrono::steady_clock::now();
    r.run();
    device.host_wait(device.record(nullptr));
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  };
  // The memory is there after one round, and the programs are built.
  timed(rows[0]);
  const double first_fill = timed(rows.back()), first_pack = timed(rows[1]), first_vote = timed(rows[5]);
  for (Row& r : rows) timed(r);
  for (int i = 0; i < rounds; ++i)
    for (Row& r : rows) r.seconds.push_back(timed(r));

  std::printf("%s, %lld elements, medians of %d interleaved rounds\n\n", backend->target(),
              static_cast<long long>(count), rounds);
  std::printf("%-16s %10s %8s %22s\n", "", "ms", "GB/s", "of memcpy's GB/s");
  const double memcpy_rate = rows[0].bytes / rows[0].median();
  for (Row& r : rows) {
    const double rate = r.bytes / r.median();
    std::printf("%-16s %10.2f %8.1f %22.2f\n", r.name, 1e3 * r.median(), 1e-9 * rate, rate / memcpy_rate);
  }
  std::printf("\nfirst call, with the program's building: fill %.0f ms, pack %.0f ms, vote %.0f ms\n", 1e3 * first_fill,
              1e3 * first_pack, 1e3 * first_vote);
}

}  // namespace

int main(int argc, char** argv) {
  try {
    run(argc > 1 ? argv[1] : "", int64_t{1000000} * (argc > 2 ? std::atoi(argv[2]) : 32),
        argc > 3 ? std::atoi(argv[3]) : 15);
  } catch (const std::exception& error) {
    return std::fprintf(stderr, "sycl_signs: %s\n", error.what()), 1;
  }
  return 0;
}
