// Loads, stores and atomics: where a lane's address leads, and whether it may.
#include <algorithm>

#include "map.h"

namespace ptx {
namespace {

struct Addresses {
  uint64_t of[kWarp];
};

Addresses addresses(const Warp& warp, const Instruction& at, int32_t x, uint32_t mask) {
  Addresses out;
  if (at.wide_address) {
    const uint64_t* base = warp.source<uint64_t>(x);
    each_lane(mask, [&](uint32_t lane) { out.of[lane] = base[lane] + static_cast<uint64_t>(at.offset); });
  } else {
    const uint32_t* base = warp.source<uint32_t>(x);
    each_lane(mask, [&](uint32_t lane) { out.of[lane] = static_cast<uint32_t>(base[lane] + at.offset); });
  }
  return out;
}

std::string text(uint64_t address, uint32_t bytes) {
  char out[80];
  std::snprintf(out, sizeof out, "%u bytes at 0x%llx", bytes, static_cast<unsigned long long>(address));
  return out;
}

std::byte* local(Warp& warp, uint32_t lane, uint64_t address, uint32_t bytes, bool is_read) {
  if (address < kFirstLocal || address - kFirstLocal + bytes > warp.local_bytes())
    warp.fail(lane, "an access of " + text(address, bytes) + ", outside local memory", true);
  const uint64_t at = address - kFirstLocal;
  std::byte* const written = warp.local_written(lane) + at;
  for (uint32_t i = 0; i < bytes; ++i) {
    if (is_read && written[i] == std::byte{0}) warp.fail(lane, "a read of local memory that nothing has written");
    written[i] = std::byte{1};
  }
  return warp.local(lane) + at;
}

std::byte* global(Warp& warp, uint32_t lane, uint64_t address, uint32_t bytes) {
  const Range range = warp.team().range(address, bytes);
  if (range.begin == range.end)
    warp.fail(lane, "an access of " + text(address, bytes) + ", which no allocation holds", true);
  return reinterpret_cast<std::byte*>(address);
}

// Whether all lanes' accesses of global memory are aligned, and in one allocation: mostly, and quickly found.
bool is_plain(Warp& warp, const Instruction& at, const Addresses& addresses, uint32_t mask, uint32_t bytes) {
  if (at.space != Space::kGlobal) return false;
  uint64_t least = UINT64_MAX, most = 0, bits = 0;
  each_lane(mask, [&](uint32_t lane) {
    const uint64_t address = addresses.of[lane];
    least = std::min(least, address), most = std::max(most, address), bits |= address;
  });
  if (bits % bytes || most + bytes < most) return false;
  const Range range = warp.team().range(least, most - least + bytes);
  return range.begin != range.end;
}

// Memory of one access of a lane: `bytes` of all its elements.
std::byte* memory(Warp& warp, const Instruction& at, uint32_t lane, uint64_t address, uint32_t bytes, bool is_read) {
  if (address % bytes) warp.fail(lane, "an access of " + text(address, bytes) + ", which is not aligned", true);
  switch (at.space) {
    case Space::kGlobal:
      return global(warp, lane, address, bytes);
    case Space::kShared:
      return is_read ? warp.team().shared.read(warp, lane, address, bytes)
                     : warp.team().shared.write(warp, lane, address, bytes);
    case Space::kLocal:
      return local(warp, lane, address, bytes, is_read);
    case Space::kParam:
      break;
  }
  const auto& parameters = warp.team().parameters;
  if (!is_read || address + bytes > parameters.size())
    warp.fail(lane, "an access of " + text(address, bytes) + " beyond the parameters", true);
  return const_cast<std::byte*>(parameters.data()) + address;
}

// T: as in memory; W: as in the register.
template <class T, class W>
void load(Warp& warp, const Instruction& at, uint32_t mask) {
  const Addresses from = addresses(warp, at, at.x[at.count], mask);
  const uint32_t bytes = at.count * uint32_t{sizeof(T)};
  const bool plain = is_plain(warp, at, from, mask, bytes);
  for (uint32_t rest = mask; rest; rest &= rest - 1) {
    const auto lane = static_cast<uint32_t>(std::countr_zero(rest));
    const std::byte* there =
        plain ? reinterpret_cast<const std::byte*>(from.of[lane]) : memory(warp, at, lane, from.of[lane], bytes, true);
    for (uint32_t i = 0; i < at.count; ++i) {
      T value;
      std::memcpy(&value, there + i * sizeof(T), sizeof(T));
      warp.destination<W>(at.x[i])[lane] = static_cast<W>(value);
    }
  }
}

template <class T, class W>
void store(Warp& warp, const Instruction& at, uint32_t mask) {
  const Addresses to = addresses(warp, at, at.x[0], mask);
  const uint32_t bytes = at.count * uint32_t{sizeof(T)};
  const bool plain = is_plain(warp, at, to, mask, bytes);
  for (uint32_t rest = mask; rest; rest &= rest - 1) {
    const auto lane = static_cast<uint32_t>(std::countr_zero(rest));
    std::byte* there =
        plain ? reinterpret_cast<std::byte*>(to.of[lane]) : memory(warp, at, lane, to.of[lane], bytes, false);
    for (uint32_t i = 0; i < at.count; ++i) {
      const auto value = static_cast<T>(warp.source<W>(at.x[1 + i])[lane]);
      std::memcpy(there + i * sizeof(T), &value, sizeof(T));
    }
  }
}

template <class T, class Fn>
void atomic(Warp& warp, const Instruction& at, uint32_t mask) {
  const Addresses to = addresses(warp, at, at.x[1], mask);
  for (uint32_t rest = mask; rest; rest &= rest - 1) {
    const auto lane = static_cast<uint32_t>(std::countr_zero(rest));
    std::byte* there = memory(warp, at, lane, to.of[lane], sizeof(T), true);
    const T by = warp.source<T>(at.x[2])[lane];
    T value;
    std::memcpy(&value, there, sizeof(T));
    const T result = Fn{}(value, by);
    std::memcpy(there, &result, sizeof(T));
    warp.destination<T>(at.x[0])[lane] = value;
  }
}

template <class T = uint32_t, class Fn>
Handler handler(Fn) {
  return atomic<T, Fn>;
}

}  // namespace

Handler load_handler(uint32_t bytes, bool is_signed, bool wide) {
  switch (bytes) {
    case 1:
      return is_signed ? (wide ? load<int8_t, int64_t> : load<int8_t, int32_t>)
                       : (wide ? load<uint8_t, uint64_t> : load<uint8_t, uint32_t>);
    case 2:
      return is_signed ? (wide ? load<int16_t, int64_t> : load<int16_t, int32_t>)
                       : (wide ? load<uint16_t, uint64_t> : load<uint16_t, uint32_t>);
    case 4:
      return is_signed ? (wide ? load<int32_t, int64_t> : load<int32_t, int32_t>)
                       : (wide ? load<uint32_t, uint64_t> : load<uint32_t, uint32_t>);
    default:
      return load<uint64_t, uint64_t>;
  }
}

Handler store_handler(uint32_t bytes, bool wide) {
  switch (bytes) {
    case 1:
      return wide ? store<uint8_t, uint64_t> : store<uint8_t, uint32_t>;
    case 2:
      return wide ? store<uint16_t, uint64_t> : store<uint16_t, uint32_t>;
    case 4:
      return wide ? store<uint32_t, uint64_t> : store<uint32_t, uint32_t>;
    default:
      return store<uint64_t, uint64_t>;
  }
}

Handler atomic_handler(std::string_view op) {
  if (op == "or.b32") return handler([](uint32_t a, uint32_t b) { return a | b; });
  if (op == "and.b32") return handler([](uint32_t a, uint32_t b) { return a & b; });
  if (op == "add.u32") return handler([](uint32_t a, uint32_t b) { return a + b; });
  if (op == "add.u64") return handler<uint64_t>([](uint64_t a, uint64_t b) { return a + b; });
  if (op == "min.u32") return handler([](uint32_t a, uint32_t b) { return std::min(a, b); });
  if (op == "max.u32") return handler([](uint32_t a, uint32_t b) { return std::max(a, b); });
  return nullptr;
}

}  // namespace ptx
