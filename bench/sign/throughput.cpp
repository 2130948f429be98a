// Sign kernels of the CPU and the plain passes over memory that bound them. For every line of input one round: each
// pass once, in turn, its seconds on one line of JSON. Memory lies in huge pages where the system has them, and
// rounds before the first are not needed: everything has been written once.
//   sign_throughput values float32|bfloat16 ELEMENTS THREADS [TARGET]   read, pack, fill, unpack
//   sign_throughput votes VOTERS ELEMENTS THREADS [TARGET]              read, vote, count, loop (unpack and sum)
#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "backend/cpu/cpu_backend.h"
#include "core/thread_pool.h"
#include "lowtide/error.h"

#if defined(__x86_64__)
#define EVERY_CPU __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define EVERY_CPU
#endif

namespace {

using namespace lowtide;

std::byte* allocate(size_t bytes) {
  constexpr size_t kHuge = size_t{2} << 20;
  bytes = (bytes + kHuge - 1) / kHuge * kHuge;
  void* p = std::aligned_alloc(kHuge, bytes);
  if (!p) std::perror("sign_throughput"), std::exit(1);
  madvise(p, bytes, MADV_HUGEPAGE);
  std::memset(p, 0, bytes);
  return static_cast<std::byte*>(p);
}

void randomize(std::byte* p, size_t bytes, uint64_t seed) {
  uint64_t x = seed * 0x9e3779b97f4a7c15ull + 1;
  for (size_t i = 0; i + 8 <= bytes; i += 8) {
    x ^= x << 13, x ^= x >> 7, x ^= x << 17;
    std::memcpy(p + i, &x, 8);
  }
}

EVERY_CPU uint64_t sum(const uint64_t* p, size_t n) {
  uint64_t all = 0;
  for (size_t i = 0; i < n; ++i) all += p[i];
  return all;
}
EVERY_CPU void fill(uint32_t* p, size_t n, uint32_t x) {
  for (size_t i = 0; i < n; ++i) p[i] = x;
}
// A vote without bit planes: unpacks every ballot to +1 and -1 and sums floats. n: a multiple of 8.
EVERY_CPU void unpack_and_sum(const unsigned char* bits, float* sums, size_t n) {
  for (size_t i = 0; i < n; i += 8)
    for (size_t b = 0; b < 8; ++b) sums[i + b] += static_cast<float>(2 * (bits[i / 8] >> b & 1) - 1);
}

// Pieces to all threads, as the kernels' own are.
void in_pieces(size_t bytes, int threads, const std::function<void(size_t at, size_t bytes)>& work) {
  constexpr size_t kPiece = size_t{256} << 10;
  std::atomic<size_t> next{0};
  run_parallel(threads, [&](int) {
    for (size_t at; (at = next.fetch_add(kPiece)) < bytes;) work(at, std::min(kPiece, bytes - at));
  });
}

std::atomic<uint64_t> sink{0};

// All of them in one job, a piece of each after the other.
void read_all(const std::vector<const std::byte*>& all, size_t bytes, int threads) {
  constexpr size_t kPiece = size_t{256} << 10;
  const size_t pieces = (bytes + kPiece - 1) / kPiece;
  std::atomic<size_t> next{0};
  run_parallel(threads, [&](int) {
    for (size_t i; (i = next.fetch_add(1)) < pieces * all.size();) {
      const size_t at = i % pieces * kPiece;
      sink += sum(reinterpret_cast<const uint64_t*>(all[i / pieces] + at), std::min(kPiece, bytes - at) / 8);
    }
  });
}

struct Pass {
  const char* name;
  std::function<void()> run;
  double share = 1;  // of the work that it does
};

void rounds(const std::vector<Pass>& passes) {
  for (int c, turn = 0; (c = std::getchar()) != EOF;) {
    if (c != '\n') continue;
    std::vector<double> seconds(passes.size());
    for (size_t k = 0; k < passes.size(); ++k) {
      const size_t i = (k + static_cast<size_t>(turn)) % passes.size();  // nobody always follows the same neighbour
      const auto begin = std::chrono::steady_clock::now();
      passes[i].run();
      seconds[i] = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count() / passes[i].share;
    }
    ++turn;
    for (size_t i = 0; i < passes.size(); ++i)
      std::printf("%s\"%s\": %.9f", i ? ", " : "{", passes[i].name, seconds[i]);
    std::printf("}\n");
    std::fflush(stdout);
  }
}

void values(DType dtype, int64_t count, int threads, Backend& cpu) {
  const auto bytes = static_cast<size_t>(count * dtype_bytes(dtype));
  std::byte *in = allocate(bytes), *out = allocate(bytes), *bits = allocate(static_cast<size_t>(sign_bytes(count)));
  randomize(in, bytes, 1);
  SignItem pack{dtype, 0, count, in, bits}, unpack{dtype, 0, count, out, bits};
  uint32_t nonfinite = 0;
  SignItem checked = pack;
  checked.nonfinite = &nonfinite;
  rounds({
      {"read", [&] { read_all({in}, bytes, threads); }},
      {"pack",
       [&] {
         cpu.pack_signs({&pack, 1}, threads, nullptr);
       }},
      {"pack_checked",
       [&] {
         cpu.pack_signs({&checked, 1}, threads, nullptr);
       }},
      {"fill",
       [&] {
         in_pieces(bytes, threads,
                   [&](size_t at, size_t n) { fill(reinterpret_cast<uint32_t*>(out + at), n / 4, 0x3f803f80u); });
       }},
      {"memset",
       [&] {
         const size_t share = bytes / static_cast<size_t>(threads);
         std::atomic<int> next{0};
         run_parallel(threads, [&](int) {
           for (int i; (i = next.fetch_add(1)) < threads;) std::memset(out + static_cast<size_t>(i) * share, 1, share);
         });
       }},
      {"unpack",
       [&] {
         cpu.unpack_signs({&unpack, 1}, threads, nullptr);
       }},
  });
}

void votes(size_t voters, int64_t count, int threads, Backend& cpu) {
  const auto bytes = static_cast<size_t>(sign_bytes(count));
  std::vector<const std::byte*> ballots;
  std::byte* const all = allocate(voters * bytes);  // one after the other, as they are gathered
  randomize(all, voters * bytes, 1);
  for (size_t v = 0; v < voters; ++v) ballots.push_back(all + v * bytes);
  VoteItem item;
  item.count = count, item.ballots = ballots, item.result = allocate(bytes);
  CountItem counts{count, ballots, {}, {}};
  std::vector<std::byte*> planes;
  for (int j = 0; j < static_cast<int>(std::bit_width(voters)); ++j) planes.push_back(allocate(bytes));
  counts.planes = planes;
  constexpr size_t kTile = 4096;  // signs of the plain loop that stay in the first-level cache
  // The plain loop takes a part of the signs, for it would take most of the time; its seconds are those of all.
  const size_t part = std::min(bytes, std::max(kTile / 4, (size_t{1} << 22) / voters / (kTile / 4) * (kTile / 4)));
  rounds({
      {"read", [&] { read_all(ballots, bytes, threads); }},
      {"vote", [&] { cpu.vote_signs(item, threads, nullptr); }},
      {"count", [&] { cpu.count_signs(counts, threads, nullptr); }},
      {"loop",
       [&] {
         std::atomic<size_t> next{0};
         run_parallel(threads, [&](int) {
           for (size_t at; (at = next.fetch_add(kTile / 8)) < part;) {
             float sums[kTile] = {};
             const size_t here = std::min(kTile / 8, part - at);
             for (const std::byte* ballot : ballots)
               unpack_and_sum(reinterpret_cast<const unsigned char*>(ballot) + at, sums, 8 * here);
             for (size_t i = 0; i < 8 * here; i += 8) {
               unsigned byte = 0;
               for (size_t b = 0; b < 8; ++b) byte |= static_cast<unsigned>(sums[i + b] >= 0) << b;
               item.result[at + i / 8] = static_cast<std::byte>(byte);
             }
           }
         });
       },
       static_cast<double>(part) / static_cast<double>(bytes)},
  });
}

}  // namespace

int main(int argc, char** argv) {
  const std::string what = argc > 1 ? argv[1] : "", kind = argc > 2 ? argv[2] : "";
  const int64_t count = argc > 3 ? std::atoll(argv[3]) : 0;
  const int threads = argc > 4 ? std::atoi(argv[4]) : 0;
  if (count < 1024 || count % 1024 || threads < 1 || (what != "values" && what != "votes")) {
    std::fprintf(stderr,
                 "sign_throughput values float32|bfloat16 ELEMENTS THREADS [TARGET]\n"
                 "sign_throughput votes VOTERS ELEMENTS THREADS [TARGET]\n"
                 "ELEMENTS: a multiple of 1024\n");
    return 2;
  }
  try {
    const auto cpu = cpu::make_backend(argc > 5 ? argv[5] : "");
    if (what == "values")
      values(kind == "float32" ? DType::kF32 : DType::kBF16, count, threads, *cpu);
    else
      votes(static_cast<size_t>(std::atoll(kind.c_str())), count, threads, *cpu);
  } catch (const Error& error) {
    return std::fprintf(stderr, "sign_throughput: %s\n", error.what()), 1;
  }
  return 0;
}
