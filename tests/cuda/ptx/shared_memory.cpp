#include "warp.h"

namespace ptx {
namespace {

constexpr std::byte kPoison{0xc5};
constexpr uint16_t kNobody = 0xffff, kSeveral = 0xfffe;

std::string text(uint64_t address, uint32_t bytes) {
  return std::to_string(bytes) + " bytes at " + std::to_string(address) + " of shared memory";
}

}  // namespace

void SharedMemory::begin(const Program& program) {
  const size_t size = program.shared_end - kFirstShared;
  bytes_.assign(size, kPoison);
  states_.assign(size, kNone);
  if (accesses_.size() < size) accesses_.resize(size);
  for (size_t i = 0; i < program.shared.size(); ++i)
    std::fill_n(states_.begin() + (program.shared_addresses[i] - kFirstShared), program.shared[i].bytes,
                static_cast<uint8_t>(kUnwritten));
  ++epoch_;
}

std::byte* SharedMemory::find(Warp& warp, uint32_t lane, uint64_t address, uint32_t bytes) {
  const uint64_t at = address - kFirstShared;
  if (address < kFirstShared || at + bytes > states_.size() || states_[at] == kNone || states_[at + bytes - 1] == kNone)
    warp.fail(lane, "an access of " + text(address, bytes) + ", where no variable is", true);
  return bytes_.data() + at;
}

// Accesses before the block's last barrier no longer matter.
SharedMemory::Access& SharedMemory::renew(size_t at) {
  Access& access = accesses_[at];
  if (access.epoch != epoch_) access = {epoch_, 0, 0, 0, kNobody, kNobody};
  return access;
}

void SharedMemory::check_write(Warp& warp, uint32_t lane, const Access& access, size_t at, const char* what) const {
  if (access.writer == kNobody) return;
  const uint32_t other = access.writer, me = warp.first_thread() + lane;
  if (other == me) return;
  if (other / kWarp == me / kWarp && warp.known(lane, other % kWarp) >= access.write_clock) return;
  warp.fail(lane, std::string(what) + " shared memory at " + std::to_string(at + kFirstShared) + ", which thread " +
                      std::to_string(other) + " has written without a barrier between");
}

// Whether all others that have read did so before a barrier that the lane has passed, too.
bool SharedMemory::are_known(const Warp& warp, uint32_t lane, const Access& access) {
  for (uint32_t rest = access.readers & ~(1u << lane); rest; rest &= rest - 1)
    if (warp.known(lane, static_cast<uint32_t>(std::countr_zero(rest))) < access.read_clock) return false;
  return true;
}

std::byte* SharedMemory::read(Warp& warp, uint32_t lane, uint64_t address, uint32_t bytes) {
  std::byte* const there = find(warp, lane, address, bytes);
  const auto first = static_cast<size_t>(there - bytes_.data());
  const auto of_warp = static_cast<uint16_t>(warp.first_thread() / kWarp);
  for (size_t at = first; at < first + bytes; ++at) {
    if (states_[at] != kWritten) warp.fail(lane, "a read of " + text(address, bytes) + ", which nothing has written");
    Access& access = renew(at);
    check_write(warp, lane, access, at, "a read of");
    const bool is_first = access.readers == 0;
    if (!is_first && access.reading_warp != of_warp) {
      access.reading_warp = kSeveral;
      continue;
    }
    if (is_first || are_known(warp, lane, access)) access.readers = 0;
    access.readers |= 1u << lane;
    access.reading_warp = of_warp, access.read_clock = warp.clock(lane);
  }
  return there;
}

std::byte* SharedMemory::write(Warp& warp, uint32_t lane, uint64_t address, uint32_t bytes) {
  std::byte* const there = find(warp, lane, address, bytes);
  const auto first = static_cast<size_t>(there - bytes_.data());
  const uint32_t me = warp.first_thread() + lane;
  for (size_t at = first; at < first + bytes; ++at) {
    Access& access = renew(at);
    check_write(warp, lane, access, at, "a write of");
    if (access.readers) {
      const bool ordered = access.reading_warp == me / kWarp && are_known(warp, lane, access);
      if (!ordered)
        warp.fail(lane, "a write of shared memory at " + std::to_string(at + kFirstShared) +
                            ", which other threads have read without a barrier between");
    }
    states_[at] = kWritten;
    access.writer = static_cast<uint16_t>(me), access.write_clock = warp.clock(lane);
    access.readers = 0;
  }
  return there;
}

}  // namespace ptx
