// Compares packing and unpacking with the definition, for all options, on every target here and several threads.
#include "backend/cpu/targets.h"
//
#include <hwy/highway.h>

#include "backend/cpu/cpu_backend.h"
#include "backend/cpu/sign_kernels.h"
#include "support/sign_reference.h"
#include "support/test.h"

namespace lowtide::testing {
namespace {

constexpr int64_t kScaleBlock = 1024;

// Bytes at any address, between guard bytes that nobody may change.
struct Memory {
  Memory(size_t size, Rng& rng) : offset(static_cast<size_t>(rng.below(9))), all(size + offset + 9) {
    for (auto& byte : all) byte = static_cast<unsigned char>(rng.next());
  }
  std::byte* at() { return reinterpret_cast<std::byte*>(all.data() + offset); }
  bool bit(int64_t i) const { return all[offset + static_cast<size_t>(i / 8)] >> (i % 8) & 1; }
  void put(int64_t i, bool one) {
    unsigned char& byte = all[offset + static_cast<size_t>(i / 8)];
    byte = static_cast<unsigned char>((byte & ~(1 << (i % 8))) | one << (i % 8));
  }
  size_t offset;
  Bits all;
};

int64_t bits_apart(const Memory& a, const Memory& b) {
  int64_t apart = 0;
  for (size_t i = 0; i < a.all.size(); ++i) apart += std::popcount(static_cast<unsigned>(a.all[i] ^ b.all[i]));
  return apart;
}

int64_t any_count(Rng& rng, int turn) {
  constexpr int64_t kSizes[] = {0, 1, 7, 8, 63, 64, 65, 127, 128, 511, 512, 513, 1023, 1024, 1025, 2047};
  if (turn % 400 == 0) return rng.between(60000, 300000);  // several pieces
  return rng.chance(0.3) ? kSizes[rng.below(std::size(kSizes))] : rng.below(300);
}

// Returns x rounded to nearest, ties to even.
double rounded(DType dtype, double x) {
  if (dtype != DType::kF16 || x == 0 || !std::isfinite(x)) return x;
  const double unit = std::ldexp(1, std::max(std::ilogb(x), -14) - 10), r = std::nearbyint(x / unit) * unit;
  return std::abs(r) > 65504 ? std::copysign(INFINITY, x) : r;
}

struct Case {
  DType dtype;
  int64_t first, count;
  bool presence, nonfinite, zero_is_plus;
};

// Defines what packing must produce: bits, presence, and whether a value is not finite.
bool define(const Case& c, const unsigned char* values, Memory* bits, Memory* presence) {
  bool nonfinite = false;
  const int64_t end = c.first + c.count;
  const int64_t blocks = (end + kSignBlock - 1) / kSignBlock;
  for (int64_t b = c.first / kSignBlock; c.presence && c.count > 0 && b < (blocks + 7) / 8 * 8; ++b)
    presence->put(b, false);
  for (int64_t i = c.first; i < end; ++i) {
    const double x = value_of(c.dtype, values + (i - c.first) * dtype_bytes(c.dtype));
    bits->put(i, x > 0 || (x == 0 && c.zero_is_plus));
    if (c.presence && x != 0) presence->put(i / kSignBlock, true);
    nonfinite |= !std::isfinite(x);
  }
  for (int64_t i = end; c.count > 0 && i % 8; ++i) bits->put(i, false);
  return nonfinite;
}

TEST(CpuSignKernels, PackingWithEveryOption) {
  auto rng = seeded("packing", 91);
  const auto targets = cpu::make_backend("")->targets();
  std::vector<std::unique_ptr<Backend>> backends;
  for (const auto& name : targets) backends.push_back(cpu::make_backend(name));
  constexpr int kCases = 20000;
  int64_t apart = 0, wrong_flags = 0, elements = 0, absent = 0, flagged = 0, seen = 0, changed = 0;
  for (int turn = 0; turn < kCases; ++turn) {
    Case c{
        static_cast<DType>(rng.below(3)), 0, any_count(rng, turn), rng.chance(0.5), rng.chance(0.5), rng.chance(0.5)};
    c.first = c.presence ? rng.below(3) * kSignAlignment : rng.below(3000);
    const auto width = static_cast<size_t>(dtype_bytes(c.dtype));
    const auto skipped = static_cast<size_t>(rng.below(9));  // values begin at any element
    const bool finite_only = rng.chance(0.3);
    Bits values = random_elements(c.dtype, c.count + static_cast<int64_t>(skipped), rng);
    unsigned char* from = values.data() + skipped * width;
    for (int64_t i = 0; i < c.count; ++i) {
      unsigned char* x = from + static_cast<size_t>(i) * width;
      if (finite_only && !std::isfinite(value_of(c.dtype, x))) std::memset(x, 0, width);
    }
    if (c.presence)
      for (int64_t i = 0; i < c.count; i += 64)
        if (rng.chance(0.4)) {
          const auto n = static_cast<size_t>(std::min<int64_t>(64, c.count - i));
          std::memset(from + static_cast<size_t>(i) * width, 0, n * width);
          if (rng.chance(0.5)) from[static_cast<size_t>(i) * width + width - 1] = 0x80;  // -0
        }
    const Memory before(sign_bytes(c.first + c.count), rng);
    const Memory presence_before(static_cast<size_t>(presence_bytes(c.first + c.count)), rng);
    Memory wanted = before, presence_wanted = presence_before;
    const bool nonfinite = define(c, from, &wanted, &presence_wanted);
    flagged += c.nonfinite && nonfinite;
    for (size_t t = 0; t < targets.size(); ++t) {
      Memory bits = before, presence = presence_before;
      uint32_t flag = 0;
      SignItem item{c.dtype, c.first, c.count, from, bits.at()};
      item.presence = c.presence ? presence.at() : nullptr;
      item.zero_is_plus = c.zero_is_plus;
      item.nonfinite = c.nonfinite ? &flag : nullptr;
      backends[t]->pack_signs({&item, 1}, 1 + (turn + static_cast<int>(t)) % 3, nullptr);
      apart += bits_apart(bits, wanted) + bits_apart(presence, presence_wanted);
      wrong_flags += c.nonfinite && (flag == 1) != nonfinite;
      elements += c.count;
    }
    absent += c.presence ? c.count : 0;
    // Changing one value must change the result.
    if (c.count == 0) continue;
    unsigned char* x = from + static_cast<size_t>(rng.below(c.count)) * width;
    const double was = value_of(c.dtype, x);
    if (was == 0 || std::isnan(was)) continue;
    x[width - 1] ^= 0x80;
    Memory bits = before;
    SignItem item{c.dtype, c.first, c.count, from, bits.at()};
    item.zero_is_plus = c.zero_is_plus;
    backends[0]->pack_signs({&item, 1}, 1, nullptr);
    ++changed;
    seen += bits_apart(bits, wanted) == 1;
  }
  figure("{} cases on {} targets, {} elements, {} flagged: {} bits and {} flags differ; {} of {} changed values seen",
         kCases, targets.size(), elements, flagged, apart, wrong_flags, seen, changed);
  EXPECT_EQ(apart, 0);
  EXPECT_EQ(wrong_flags, 0);
  EXPECT_GT(flagged, 1000);
  EXPECT_GT(absent, 100000);
  EXPECT_GT(changed, 10000);
  EXPECT_EQ(seen, changed);
}

TEST(CpuSignKernels, UnpackingWithEveryOption) {
  auto rng = seeded("unpacking", 92);
  const auto targets = cpu::make_backend("")->targets();
  std::vector<std::unique_ptr<Backend>> backends;
  for (const auto& name : targets) backends.push_back(cpu::make_backend(name));
  constexpr int kCases = 20000;
  int64_t wrong = 0, elements = 0, zeros_seen = 0, scaled_cases = 0, seen = 0, turned = 0;
  for (int turn = 0; turn < kCases; ++turn) {
    const auto dtype = static_cast<DType>(rng.below(3));
    const auto width = static_cast<size_t>(dtype_bytes(dtype));
    const int64_t count = any_count(rng, turn);
    const bool zeros = rng.chance(0.4), presence = rng.chance(0.4), scaled = rng.chance(0.4);
    const int64_t first = presence || scaled ? rng.below(3) * kSignAlignment : rng.below(3000);
    Memory bits(sign_bytes(first + count), rng), marks(sign_bytes(first + count), rng);
    Memory present(static_cast<size_t>(presence_bytes(first + count)), rng);
    std::vector<uint16_t> scales(static_cast<size_t>((first + count) / kScaleBlock + 1));
    for (auto& s : scales) s = static_cast<uint16_t>(rng.next() % 0x7f80);
    std::vector<double> wanted(static_cast<size_t>(count));
    for (int64_t i = 0; i < count; ++i) {
      const int64_t at = first + i;
      const bool zero = (zeros && marks.bit(at)) || (presence && !present.bit(at / kSignBlock));
      double scale = 1;
      if (scaled) {
        const uint16_t s = scales[static_cast<size_t>(at / kScaleBlock)];
        unsigned char raw[2];
        std::memcpy(raw, &s, 2);
        scale = rounded(dtype, value_of(DType::kBF16, raw));
      }
      wanted[static_cast<size_t>(i)] = zero ? 0 : bits.bit(at) ? scale : -scale;
      zeros_seen += zero;
    }
    scaled_cases += scaled;
    const auto offset = static_cast<size_t>(rng.below(17)) * width;  // begin at any element
    const auto compare = [&](const Bits& values) {
      int64_t apart = 0;
      for (int64_t i = 0; i < count; ++i) {
        const double x = value_of(dtype, values.data() + offset + static_cast<size_t>(i) * width);
        const double want = wanted[static_cast<size_t>(i)];
        apart += x != want || (want == 0 && !scaled && std::signbit(x));
      }
      for (size_t b = 0; b < values.size(); ++b)
        if (b < offset || b >= offset + static_cast<size_t>(count) * width) apart += values[b] != 0xa5;
      return apart;
    };
    for (size_t t = 0; t < targets.size(); ++t) {
      Bits values(offset + static_cast<size_t>(count) * width + 64, 0xa5);
      SignItem item{dtype, first, count, values.data() + offset, bits.at(), zeros ? marks.at() : nullptr};
      item.presence = presence ? present.at() : nullptr;
      item.scales = scaled ? scales.data() : nullptr;
      backends[t]->unpack_signs({&item, 1}, 1 + (turn + static_cast<int>(t)) % 3, nullptr);
      wrong += compare(values);
      elements += count;
      if (t > 0 || count == 0 || zeros || presence || scaled) continue;
      const int64_t other = first + rng.below(count);  // turning one bit must change the result
      bits.put(other, !bits.bit(other));
      backends[t]->unpack_signs({&item, 1}, 1, nullptr);
      bits.put(other, !bits.bit(other));
      ++turned;
      seen += compare(values) == 1;
    }
  }
  figure("{} cases on {} targets, {} elements, {} zeros, {} cases with scales: {} differ; {} of {} turned bits seen",
         kCases, targets.size(), elements, zeros_seen, scaled_cases, wrong, seen, turned);
  EXPECT_EQ(wrong, 0);
  EXPECT_GT(zeros_seen, 100000);
  EXPECT_GT(turned, 1000);
  EXPECT_EQ(seen, turned);
}

// One call with many small items around a large one gives each item's own result, and one flag for all.
TEST(CpuSignKernels, ManyItemsInOneCall) {
  auto rng = seeded("items of one call", 93);
  int64_t apart = 0, items_seen = 0, elements = 0;
  for (const auto& target : cpu::make_backend("")->targets()) {
    const auto cpu = cpu::make_backend(target);
    for (int threads = 1; threads <= 3; ++threads) {
      std::vector<Bits> values;
      std::vector<Memory> bits, wanted;
      std::vector<SignItem> items;
      uint32_t flag = 0;
      for (int i = 0; i < 300; ++i) {
        const int64_t count = i == 150 ? 400000 : rng.below(2000);
        values.push_back(random_elements(DType::kBF16, count, rng));
        bits.emplace_back(sign_bytes(count), rng);
      }
      for (size_t i = 0; i < values.size(); ++i) {
        const auto count = static_cast<int64_t>(values[i].size() / 2);
        items.push_back({DType::kBF16, 0, count, values[i].data(), bits[i].at()});
        items.back().nonfinite = &flag;
        wanted.push_back(bits[i]);
        define({DType::kBF16, 0, count, false, false, true}, values[i].data(), &wanted[i], nullptr);
        elements += count;
      }
      cpu->pack_signs(items, threads, nullptr);
      for (size_t i = 0; i < bits.size(); ++i) apart += bits_apart(bits[i], wanted[i]);
      items_seen += static_cast<int64_t>(items.size());
      EXPECT_EQ(flag, 1u);
    }
  }
  figure("{} items, {} elements: {} bits differ", items_seen, elements, apart);
  EXPECT_EQ(apart, 0);
  EXPECT_GT(items_seen, 500);
}

// The order "big" for bits and zeros, and sign bits in place of signs.
TEST(CpuSignKernels, TheOrderBigAndSignBitsOnEveryTarget) {
  auto rng = seeded("forms of signs", 95);
  const auto bit_of = [](const Bits& bits, int64_t i, bool big) {
    return (bits[static_cast<size_t>(i / 8)] >> (big ? 7 - i % 8 : i % 8) & 1) != 0;
  };
  int64_t apart = 0, elements = 0;
  for (const auto& name : cpu::make_backend("")->targets()) {
    const cpu::SignKernels kernels = cpu::pick_signs(cpu::target_bit(name));
    for (int turn = 0; turn < 1000; ++turn) {
      const auto dtype = static_cast<DType>(rng.below(3));
      const auto width = static_cast<size_t>(dtype_bytes(dtype));
      const int64_t count = any_count(rng, turn);
      const bool big = rng.chance(0.7), sign_bit = rng.chance(0.5);
      const int threads = 1 + turn % 3;
      Bits values = random_elements(dtype, count, rng), back(values.size());
      Bits bits(sign_bytes(count) + 1, 0x5a), zeros(bits.size());
      for (auto& byte : zeros) byte = static_cast<unsigned char>(rng.next());
      SignItem item{dtype, 0, count, values.data(), reinterpret_cast<std::byte*>(bits.data())};
      item.big = big;
      pack_signs(kernels, {&item, 1}, sign_bit, threads);
      item.values = back.data();
      if (rng.chance(0.5)) item.zeros = reinterpret_cast<const std::byte*>(zeros.data());
      unpack_signs(kernels, {&item, 1}, threads);
      for (int64_t i = 0; i < count; ++i) {
        const unsigned char* x = values.data() + static_cast<size_t>(i) * width;
        const bool plus = sign_bit ? !(x[width - 1] & 0x80) : value_of(dtype, x) >= 0;
        const bool zero = item.zeros && bit_of(zeros, i, big);
        apart += bit_of(bits, i, big) != plus;
        apart += value_of(dtype, back.data() + static_cast<size_t>(i) * width) != (zero ? 0 : plus ? 1 : -1);
      }
      for (int64_t i = count; i % 8; ++i) apart += bit_of(bits, i, big);
      apart += bits.back() != 0x5a;
      elements += count;
    }
  }
  figure("{} elements: {} differ", elements, apart);
  EXPECT_EQ(apart, 0);
  EXPECT_GT(elements, 100000);
}

// Large aligned outputs are stored past the cache, with the same values.
TEST(CpuSignKernels, ValuesStoredPastTheCache) {
  auto rng = seeded("values past the cache", 94);
  int64_t apart = 0, elements = 0;
  for (const int64_t target : {int64_t{HWY_AVX2}, int64_t{HWY_AVX3}, int64_t{HWY_AVX3_DL}, int64_t{HWY_SCALAR}}) {
    if (target != HWY_SCALAR && !(hwy::SupportedTargets() & target)) continue;
    const cpu::SignKernels kernels = cpu::pick_signs(target);
    for (int turn = 0; turn < 500; ++turn) {
      const auto dtype = static_cast<DType>(rng.below(3));
      const auto width = static_cast<size_t>(dtype_bytes(dtype));
      const int64_t first = rng.below(200), count = rng.below(3000);
      Memory bits(sign_bytes(first + count), rng);
      std::vector<Bits> values(2, Bits(static_cast<size_t>(count) * width + 256, 0xa5));
      for (const bool stream : {false, true}) {
        unsigned char* base = values[stream].data();
        // Aligns the first whole word of signs in most of the cases.
        const auto lead = static_cast<uintptr_t>(-first & 63) * width;
        base += (64 - (reinterpret_cast<uintptr_t>(base) + lead) % 64) % 64 + (turn % 5 ? 0 : width);
        const SignItem item{dtype, first, count, base, bits.at()};
        kernels.unpack[static_cast<int>(dtype)]({item, stream});
        std::memmove(values[stream].data(), base, static_cast<size_t>(count) * width);
        for (int64_t i = 0; i < count; ++i)
          apart +=
              value_of(dtype, values[stream].data() + static_cast<size_t>(i) * width) != (bits.bit(first + i) ? 1 : -1);
      }
      elements += count;
    }
  }
  figure("{} elements: {} differ", elements, apart);
  EXPECT_EQ(apart, 0);
  EXPECT_GT(elements, 100000);
}

}  // namespace
}  // namespace lowtide::testing
