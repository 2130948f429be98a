// For the tests of signs: random bits, counts around words, and arrays that go to the device and back.
#pragma once

#include <bit>
#include <deque>

#include "support/sign_reference.h"
#include "device/device_support.h"

namespace lowtide::testing {

inline std::byte* bytes(Bits& bits) { return reinterpret_cast<std::byte*>(bits.data()); }

inline Bits random_bits(size_t size, Rng& rng) {
  Bits out(size);
  for (auto& byte : out) byte = static_cast<unsigned char>(rng.next());
  return out;
}

inline void put_sign(Bits& bits, int64_t i, bool bit) {
  unsigned char& byte = bits[static_cast<size_t>(i / 8)];
  byte = static_cast<unsigned char>((byte & ~(1 << (i % 8))) | bit << (i % 8));
}

inline int64_t differing_bits(const Bits& a, const Bits& b) {
  int64_t differing = 0;
  for (size_t i = 0; i < a.size(); ++i) differing += std::popcount(static_cast<unsigned>(a[i] ^ b[i]));
  return differing;
}

// Lengths around words, groups and launches.
inline int64_t some_count(Rng& rng) {
  return rng.chance(0.01) ? rng.between(20000, 70000) : rng.chance(0.5) ? rng.below(70) : rng.below(1500);
}

// Presence of each block of signs, in which most are present.
inline Bits random_presence(int64_t count, Rng& rng) {
  Bits out(static_cast<size_t>(presence_bytes(count)));
  for (int64_t b = 0; b < (count + kSignBlock - 1) / kSignBlock; ++b) put_sign(out, b, rng.chance(0.7));
  return out;
}

// One array three times: as the CPU backend's, on the device, and as the definition has it.
struct Trio {
  Bits cpu, wanted;
  GuardedBytes device;
  explicit Trio(Bits start) : cpu(start), wanted(start), device(start.data(), start.size()) {}
  // Bits in which the device's differs from the others'.
  int64_t differing() {
    Bits got(cpu.size());
    device.get(got.data());
    return differing_bits(got, cpu) + differing_bits(got, wanted);
  }
};

inline long long ll(int64_t x) { return x; }

}  // namespace lowtide::testing
