// For sign tests, which compare the device with the CPU; tests next to src/backend/cpu compare the CPU with the
// definitions. Random bits, counts around words, and arrays that go to the device and back.
#pragma once

#include "support/sign_reference.h"
#include "device/device_support.h"
#include "support/test.h"

namespace lowtide::testing {

inline void put_sign(Bits& bits, int64_t i, bool bit) {
  unsigned char& byte = bits[static_cast<size_t>(i / 8)];
  byte = static_cast<unsigned char>((byte & ~(1 << (i % 8))) | bit << (i % 8));
}

// Returns a length near the sizes of words, groups and launches.
inline int64_t some_count(Rng& rng) {
  return rng.chance(0.01) ? rng.between(20000, 70000) : rng.chance(0.5) ? rng.below(70) : rng.below(1500);
}

// Returns the presence of each block of signs; most blocks are present.
inline Bits random_presence(int64_t count, Rng& rng) {
  Bits out(static_cast<size_t>(presence_bytes(count)));
  for (int64_t b = 0; b < (count + kSignBlock - 1) / kSignBlock; ++b) put_sign(out, b, rng.chance(0.7));
  return out;
}

// One array twice: for the CPU backend, and on the device.
struct Twin {
  Bits cpu;
  GuardedBytes device;
  explicit Twin(Bits start) : cpu(start), device(start.data(), start.size()) {}
  int64_t differing() {  // bits
    Bits got(cpu.size());
    device.get(got.data());
    return bits_apart(got, cpu);
  }
};

}  // namespace lowtide::testing
