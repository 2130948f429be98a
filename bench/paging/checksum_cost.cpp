// Measures the cost of checksums and generations in a step with all state on disk. The linker hands every call of
// chunk_checksum to the function below (--wrap), which times it, or leaves it out: the library itself has no such
// switch.
//   checksum_cost DIRECTORY STATE ELEMENTS BUDGET CHUNK ROUNDS
// Prints a line a round: seconds of a step with checksums, of these the checksums' own, seconds of a step without; then
// bytes checksummed in a step, and seconds of checksums over that many bytes that no cache holds.
#include <algorithm>
#include <chrono>
#include <unordered_map>

#include "core/thread_pool.h"
#include "lowtide/optimizer.h"
#include "memory/checksum.h"
#include "state.h"

namespace {

double now() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

struct Meter {
  bool on = true;
  double seconds = 0;
  int64_t bytes = 0;
  struct Written {
    uint64_t generation, sum;
    bool real;
  };
  std::unordered_map<int64_t, Written> chunks;  // what was answered when each chunk was last written
} meter;

}  // namespace

// chunk_checksum as the library has it, and as its callers reach it.
#define CHECKSUM "_ZN7lowtide14chunk_checksumEPKSt4bytellmi"
extern "C" {
uint64_t real_checksum(const std::byte*, int64_t, int64_t, uint64_t, int) __asm__("__real_" CHECKSUM);
uint64_t wrapped_checksum(const std::byte*, int64_t, int64_t, uint64_t, int) __asm__("__wrap_" CHECKSUM);

uint64_t wrapped_checksum(const std::byte* data, int64_t bytes, int64_t number, uint64_t generation, int threads) {
  const auto found = meter.chunks.find(number);
  const bool reading = found != meter.chunks.end() && found->second.generation == generation;
  uint64_t sum = 0;
  if (meter.on) {
    const double start = now();
    sum = real_checksum(data, bytes, number, generation, threads);
    meter.seconds += now() - start;
    meter.bytes += bytes;
  }
  if (!reading) {
    meter.chunks[number] = {generation, sum, meter.on};
    return sum;
  }
  // A chunk that was written without a checksum reads as right; one that was written with it is compared if it can be.
  return meter.on && found->second.real ? sum : found->second.sum;
}
}

int main(int argc, char** argv) {
  if (argc != 7) return std::fprintf(stderr, "checksum_cost DIRECTORY STATE ELEMENTS BUDGET CHUNK ROUNDS\n"), 2;
  try {
    paging::Tensors tensors(std::atol(argv[3]));
    const int64_t budget = std::atol(argv[4]), chunk = std::atol(argv[5]), rounds = std::atol(argv[6]);
    lowtide::Optimizer optimizer({.rule = "adamw",
                                  .nonfinite = lowtide::NonFinite::kPropagate,
                                  .memory = {.host = budget, .disk = argv[1], .chunk = chunk}});
    lowtide::GroupOptions group;
    group.hyper = lowtide::default_hyper("adamw");
    group.state = argv[2];
    optimizer.add_param(optimizer.add_group(group),
                        {tensors.param.data(), lowtide::DType::kF32, {tensors.rows, tensors.columns}, {}});
    const lowtide::Gradient gradient{tensors.grad.data()};
    const auto step = [&](bool on) {
      meter.on = on, meter.seconds = 0, meter.bytes = 0;
      const double start = now();
      optimizer.step({&gradient, 1});
      return now() - start;
    };
    step(true);
    int64_t bytes = 0;
    for (int64_t round = 0; round < rounds; ++round) {
      // Each kind once before it is timed: the first step after the other kind reads what that one wrote.
      double with = 0, inside = 0, without = 0;
      for (const bool on : {round % 2 == 0, round % 2 != 0}) {
        step(on);
        (on ? with : without) = step(on);
        if (on) inside = meter.seconds, bytes = meter.bytes;
      }
      std::printf("%.6f %.6f %.6f\n", with, inside, without);
    }
    if (bytes == 0)
      return std::fprintf(stderr, "checksum_cost: a step checksummed nothing: all state fits %lld bytes\n",
                          static_cast<long long>(budget)),
             1;
    const int threads = lowtide::available_threads();
    const int64_t spread = std::max<int64_t>(chunk, int64_t{256} << 20) / chunk * chunk;
    const std::vector<std::byte> memory(static_cast<size_t>(spread), std::byte{1});
    uint64_t sum = 0;
    const double start = now();
    for (int64_t at = 0; at < bytes; at += chunk)
      sum += real_checksum(memory.data() + at % spread, std::min(chunk, bytes - at), at / chunk, 1, threads);
    std::printf("%lld %.6f %d\n", static_cast<long long>(bytes), now() - start, sum == 0);
  } catch (const std::exception& error) {
    return std::fprintf(stderr, "checksum_cost: %s\n", error.what()), 1;
  }
  return 0;
}
