// Measures the rates from which planning.h predicts: steps through the optimizer itself, and the disk through the
// scratch file of streaming state.
#include <sys/statvfs.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <functional>
#include <vector>

#include "core/buffer.h"
#include "core/cores.h"
#include "core/env.h"
#include "core/error.h"
#include "core/sizes.h"
#include "lowtide/planning.h"
#include "memory/scratch_file.h"
#include "memory/plan.h"

namespace lowtide {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

double median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + static_cast<ptrdiff_t>(values.size() / 2), values.end());
  return values[values.size() / 2];
}

void check_seconds(double seconds, double most) {
  LT_REQUIRE(seconds > 0 && seconds <= most, "got %g seconds to measure for, wanted more than 0 and %g at most",
             seconds, most);
}

constexpr int64_t kRow = 4096;

// Four times the last-level cache, at 10 bytes per element (8-bit state), and at least 16 Mi elements.
int64_t elements_beyond_cache() {
  constexpr int64_t kFewest = int64_t{16} << 20, kMost = int64_t{256} << 20;
  return std::clamp(4 * last_cache_bytes() / 10 / kRow * kRow, kFewest, kMost);
}

// Fills memory with splitmix64 numbers, which neither a codec nor a disk can compress.
void fill_random(Buffer& memory, const std::function<void(uint64_t word, std::byte* to)>& put) {
  uint64_t state = 0;
  for (size_t i = 0; i + 8 <= memory.bytes(); i += 8) {
    uint64_t x = state += 0x9e3779b97f4a7c15ull;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
    put(x ^ (x >> 31), memory.data() + i);
  }
}

int64_t free_bytes(const std::string& directory) {
  struct statvfs found {};
  if (::statvfs(directory.c_str(), &found) != 0)
    fail_io(errno, "could not find out how many bytes are free in %s", directory.c_str());
  return static_cast<int64_t>(found.f_bavail) * static_cast<int64_t>(found.f_frsize);
}

// Seconds of one pass over the file, with one concurrent transfer per buffer.
double pass(ScratchFile& file, std::vector<Buffer>& memory, bool write) {
  const auto start = Clock::now();
  std::vector<ScratchFile::Ticket> tickets;
  const auto chunks = static_cast<size_t>(file.bytes() / kLargestChunk);
  for (size_t i = 0; i < chunks + memory.size(); ++i) {
    if (i >= memory.size()) file.wait(tickets[i - memory.size()]);
    if (i >= chunks) continue;
    std::byte* const at = memory[i % memory.size()].data();
    const int64_t offset = static_cast<int64_t>(i) * kLargestChunk;
    tickets.push_back(write ? file.write(offset, at, kLargestChunk) : file.read(offset, at, kLargestChunk));
  }
  return seconds_since(start);
}

}  // namespace

double measure_step_rate(const StepMeasurement& what) {
  check_seconds(what.seconds, 60);
  LT_REQUIRE(what.elements >= 0 && what.elements <= int64_t{1} << 34, "got elements=%lld, wanted 0 (chosen) to 2^34",
             ll(what.elements));
  Optimizer optimizer({what.rule, what.nonfinite, what.threads, what.cpu_target, {}});
  GroupOptions group;
  group.hyper = what.hyper;
  group.state = what.state;
  group.min_quantized_numel = 0;
  optimizer.add_group(group);
  const int64_t elements = what.elements ? what.elements : elements_beyond_cache();
  const auto bytes = static_cast<size_t>(elements) * sizeof(float);
  Buffer param(system_env(), bytes), gradient(system_env(), bytes);
  const std::vector<int64_t> sizes =
      elements % kRow == 0 ? std::vector<int64_t>{elements / kRow, kRow} : std::vector<int64_t>{elements};
  optimizer.add_param(0, {param.data(), DType::kF32, sizes, {}});
  fill_random(gradient, [](uint64_t word, std::byte* to) {
    for (int half = 0; half < 2; ++half, word >>= 32)  // in [-1, 1)
      reinterpret_cast<float*>(to)[half] = static_cast<float>(static_cast<int32_t>(word)) * 0x1p-31f;
  });
  const Gradient gradients[] = {{gradient.data()}};
  for (int i = 0; i < 2; ++i) optimizer.step(gradients);  // touch all memory, start the threads
  std::vector<double> times;
  const auto start = Clock::now();
  while (times.size() < 3 || seconds_since(start) < what.seconds) {
    const auto before = Clock::now();
    optimizer.step(gradients);
    times.push_back(seconds_since(before));
  }
  return static_cast<double>(optimizer.report().state_bytes) / median(std::move(times));
}

DiskInfo disk_info(const std::string& directory) {
  const ScratchFile file(system_env(), directory, ScratchFile::kAlignment);
  return {free_bytes(directory), file.engine(), file.direct()};
}

DiskRates measure_disk_rates(const std::string& directory, int64_t bytes, double seconds) {
  check_seconds(seconds, 600);
  LT_REQUIRE(bytes >= kLargestChunk && bytes <= int64_t{1} << 46,
             "got %lld bytes to measure with, wanted 16 MiB to 64 TiB", ll(bytes));
  DiskRates out;
  out.disk = disk_info(directory);
  out.bytes = std::min(bytes, out.disk.free_bytes / 2) / kLargestChunk * kLargestChunk;
  LT_REQUIRE(out.bytes > 0, "%s has %s free, wanted at least %s to measure with: free some, or give another directory",
             directory.c_str(), format_bytes(out.disk.free_bytes).c_str(), format_bytes(2 * kLargestChunk).c_str());
  ScratchFile file(system_env(), directory, out.bytes);
  constexpr size_t kAhead = 2;  // a step with three or more slots keeps this many reads and writes in flight
  std::vector<Buffer> memory;
  for (size_t i = 0; i < kAhead; ++i) {
    fill_random(memory.emplace_back(system_env(), static_cast<size_t>(kLargestChunk)),
                [](uint64_t word, std::byte* to) { *reinterpret_cast<uint64_t*>(to) = word; });
  }
  pass(file, memory, true);  // the first write to allocated space behaves differently
  std::vector<double> reads, writes;
  const auto start = Clock::now();
  do {
    reads.push_back(pass(file, memory, false));
    writes.push_back(pass(file, memory, true));
  } while (seconds_since(start) < seconds);
  out.read = static_cast<double>(out.bytes) / median(std::move(reads));
  out.write = static_cast<double>(out.bytes) / median(std::move(writes));
  return out;
}

}  // namespace lowtide
