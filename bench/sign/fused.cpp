// The fused parts of training by signs against plain loops that read and write the same arrays, in the same run: what
// memory allows. Rounds are interleaved; medians, and for busy machines also the best of each, and processor
// time. Prints JSON.
//   sign_fused [millions of elements, 64] [rounds, 15] [threads, one per core]
#include <time.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <functional>
#include <string>
#include <vector>

#include "backend/cpu/cpu_backend.h"
#include "backend/catalog.h"
#include "core/buffer.h"
#include "core/env.h"
#include "core/thread_pool.h"

// Plain loops, in the widest vectors that there are.
#if defined(__x86_64__)
#define LT_WIDE __attribute__((target_clones("arch=x86-64-v4", "avx2", "default")))
#else
#define LT_WIDE
#endif

LT_WIDE static void add_half(const float* g, float* e, int64_t n) {
  for (int64_t i = 0; i < n; ++i) e[i] = g[i] + e[i] * 0.5f;
}
LT_WIDE static void add_bytes(const uint32_t* g, uint8_t* e, int64_t n) {
  for (int64_t i = 0; i < n; ++i) e[i] = static_cast<uint8_t>(e[i] + (g[i] >> 24));
}
LT_WIDE static void scale(float* p, int64_t n) {
  for (int64_t i = 0; i < n; ++i) p[i] *= 0.999999f;
}

namespace {

using namespace lowtide;

struct Row {
  std::string name;
  double bytes;  // read and written, of one element
  std::function<void()> bound, fused;
  std::vector<double> of_bound = {}, of_fused = {}, ratios = {}, cpu_ratios = {};
};

double median(std::vector<double> of) {
  std::nth_element(of.begin(), of.begin() + static_cast<std::ptrdiff_t>(of.size() / 2), of.end());
  return of[of.size() / 2];
}

double best(const std::vector<double>& of) { return *std::min_element(of.begin(), of.end()); }

struct Cost {
  double seconds, cpu;  // cpu: of all threads, which the machine's other work leaves alone
};
Cost cost(const std::function<void()>& of) {
  const auto cpu = [] {
    timespec now{};
    ::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
    return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
  };
  const double before = cpu();
  const auto start = std::chrono::steady_clock::now();
  of();
  const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - start;
  return {taken.count(), cpu() - before};
}

void for_all(int64_t count, int threads, const std::function<void(int64_t begin, int64_t n)>& work) {
  constexpr int64_t kAtOnce = 65536;
  std::atomic<int64_t> next{0};
  run_parallel(threads, [&](int) {
    for (int64_t at; (at = next.fetch_add(kAtOnce)) < count;) work(at, std::min(kAtOnce, count - at));
  });
}

void run(int64_t count, int rounds, int threads) {
  Env& env = system_env();
  const auto n = static_cast<size_t>(count);
  Buffer values(env, 4 * n), params(env, 4 * n), residual(env, 4 * n), codes(env, n), scales(env, n / 64 + 64);
  Buffer bits(env, n / 8 + 128), presence(env, n / 512 + 2), bit_scales(env, n / 512 + 64);
  auto* const g = reinterpret_cast<float*>(values.data());
  auto* const p = reinterpret_cast<float*>(params.data());
  auto* const e = reinterpret_cast<float*>(residual.data());
  auto* const c = reinterpret_cast<uint8_t*>(codes.data());
  uint64_t state = 1;
  for (size_t i = 0; i < n; ++i) {
    state = state * 6364136223846793005ull + 1442695040888963407ull;
    g[i] = static_cast<float>(static_cast<int32_t>(state >> 32)) * 0x1p-31f, p[i] = g[i], e[i] = 0;
    c[i] = static_cast<uint8_t>(state >> 40);
  }
  const auto backend = cpu::make_backend("");
  const auto codec = [](const char* name) {
    for (size_t i = 0; i < codecs().size(); ++i)
      if (std::string(codecs()[i].name) == name) return static_cast<int>(i);
    std::abort();
  };
  const int64_t sizes[] = {count};
  const Layout layout = Layout::make(sizes, {});
  const auto feedback = [&](int as, void* of) {
    FeedbackItem item;
    item.count = count, item.values = g, item.codec = as, item.codes = of;
    item.scales = reinterpret_cast<float*>(scales.data());
    item.bits = bits.data(), item.bit_scales = reinterpret_cast<uint16_t*>(bit_scales.data());
    backend->feedback({&item, 1}, threads, nullptr);
  };
  const auto apply = [&](const std::byte* of_blocks) {
    const ApplyItem item{DType::kF32, 0, p, &layout, bits.data(), nullptr, of_blocks, 1e-6f, 1e-7f};
    backend->apply_signs({&item, 1}, threads, nullptr);
  };
  const auto ballot = [&](int as, void* of) {
    constexpr int kLion = 2;
    alignas(16) std::byte args[kArgsBytes];
    rules()[kLion].make_args({.lr = -1, .beta1 = 0.9, .beta2 = 0.99, .eps = 1e-8, .t = 2}, args);
    const BallotTarget target{bits.data(), presence.data(), 0, true};
    StepItem item;
    item.grad = g, item.param_layout = item.grad_layout = &layout, item.rule = kLion, item.codec = as;
    item.args = args, item.codes[0] = of, item.ballot = &target;
    if (codecs()[static_cast<size_t>(as)].scaled) item.scales[0] = reinterpret_cast<float*>(scales.data());
    backend->step({&item, 1}, threads, false, nullptr);
  };
  const auto floats = [&] { for_all(count, threads, [&](int64_t at, int64_t m) { add_half(g + at, e + at, m); }); };
  const auto bytes = [&] {
    const auto* words = reinterpret_cast<const uint32_t*>(g);
    for_all(count, threads, [&](int64_t at, int64_t m) { add_bytes(words + at, c + at, m); });
  };
  const auto param = [&] { for_all(count, threads, [&](int64_t at, int64_t m) { scale(p + at, m); }); };
  const int fp32 = codec("fp32"), dynamic8 = codec("dynamic8");
  std::vector<Row> rows = {
      {"feedback, fp32 residual", 12.125, floats, [&] { feedback(fp32, e); }},
      {"feedback, dynamic8 residual", 6.15625, bytes, [&] { feedback(dynamic8, c); }},
      {"apply", 8.125, param, [&] { apply(nullptr); }},
      {"apply, with presence", 8.127, param, [&] { apply(presence.data()); }},
      {"ballot of Lion, fp32 state", 12.127, floats, [&] { ballot(fp32, e); }},
      {"ballot of Lion, dynamic8 state", 6.158, bytes, [&] { ballot(dynamic8, c); }},
  };
  std::fill(presence.data(), presence.data() + presence.bytes(), std::byte{0xff});
  for (const Row& row : rows) row.bound(), row.fused();
  std::fill(presence.data(), presence.data() + presence.bytes(), std::byte{0xff});
  for (int i = 0; i < rounds; ++i)
    for (Row& row : rows) {
      // Whichever is second meets the other's last lines in the cache: they take turns.
      Cost first = cost(i % 2 ? row.fused : row.bound), second = cost(i % 2 ? row.bound : row.fused);
      if (i % 2) std::swap(first, second);
      row.of_bound.push_back(first.seconds), row.of_fused.push_back(second.seconds);
      row.ratios.push_back(second.seconds / first.seconds), row.cpu_ratios.push_back(second.cpu / first.cpu);
    }
  std::printf("{\"target\": \"%s\", \"elements\": %lld, \"threads\": %d, \"rounds\": %d, \"rows\": [",
              backend->target(), static_cast<long long>(count), threads, rounds);
  for (const Row& row : rows) {
    const double bound = median(row.of_bound), fused = median(row.of_fused), all = row.bytes * static_cast<double>(n);
    std::printf(
        "%s\n  {\"name\": \"%s\", \"bytes_per_element\": %.3f, \"bound_ms\": %.2f, \"fused_ms\": %.2f, "
        "\"fused_gb_per_s\": %.1f, \"of_bound_time\": %.3f, \"of_bound_time_at_best\": %.3f, \"of_bound_cpu_time\": "
        "%.3f}",
        &row == rows.data() ? "" : ",", row.name.c_str(), row.bytes, bound * 1e3, fused * 1e3, all / fused * 1e-9,
        median(row.ratios), best(row.of_fused) / best(row.of_bound), median(row.cpu_ratios));
  }
  std::printf("\n]}\n");
}

}  // namespace

int main(int argc, char** argv) {
  const auto argument = [&](int i, int otherwise) { return argc > i ? std::atoi(argv[i]) : otherwise; };
  try {
    run(std::max(argument(1, 64), 1) * int64_t{1000000}, std::max(argument(2, 15), 1),
        std::max(argument(3, available_threads()), 1));
  } catch (const std::exception& error) {
    std::fprintf(stderr, "sign_fused: %s\n", error.what());
    return 1;
  }
}
