// Signs packed and unpacked on the device, on the CPU, and by their definition: one at a time, the same bits.
#include "device/sign_support.h"

namespace lowtide {
namespace {

using testing::Bits;
using testing::bytes;
using testing::GuardedBytes;
using testing::ll;
using testing::random_bits;
using testing::TestDevice;
using testing::Trio;

// The definition of a pack, one value at a time. presence may be empty.
void pack(const SignItem& item, const Bits& values, Bits& bits, Bits& presence, uint32_t* nonfinite) {
  const int64_t end = item.first + item.count;
  for (int64_t i = item.first; i < end; ++i) {
    const double x =
        testing::value_of(item.dtype, values.data() + static_cast<size_t>((i - item.first) * dtype_bytes(item.dtype)));
    testing::put_sign(bits, i, x > 0 || (x == 0 && item.zero_is_plus));
    if (!presence.empty() && (i % kSignBlock == 0 || i == item.first))
      testing::put_sign(presence, i / kSignBlock, false);
    if (!presence.empty() && x != 0) testing::put_sign(presence, i / kSignBlock, true);
    if (!std::isfinite(x)) *nonfinite = 1;
  }
  for (int64_t i = end; item.count && i % 8; ++i) testing::put_sign(bits, i, false);
  for (int64_t b = (end + kSignBlock - 1) / kSignBlock; item.count && !presence.empty() && b % 8; ++b)
    testing::put_sign(presence, b, false);
}

TEST(DeviceSigns, PackingGivesTheBitsOfTheCpu) {
  LT_NEEDS_DEVICE();
  auto rng = testing::seeded("packing on the device", 91);
  TestDevice& device = TestDevice::get();
  const auto cpu = open_backend("cpu", "");
  const int cases = testing::share_of(3000);
  int64_t differing = 0, elements = 0, plus = 0, with_presence = 0, absent = 0, nonfinite = 0, looked = 0;
  for (int c = 0; c < cases; ++c) {
    const auto dtype = static_cast<DType>(rng.below(3));
    const bool presence = rng.chance(0.4), looks = rng.chance(0.4);
    const int64_t count = testing::some_count(rng);
    const int64_t first = presence ? kSignAlignment * rng.below(3) : rng.chance(0.3) ? 0 : rng.below(300);
    const auto misaligned = static_cast<size_t>(rng.below(8)), width = static_cast<size_t>(dtype_bytes(dtype));
    Bits values = testing::random_elements(dtype, count, rng);
    const bool tame = rng.chance(0.5);  // no value that is not finite, and blocks of zeros
    for (int64_t i = 0; tame && i < count; ++i) {
      const auto at = values.data() + static_cast<size_t>(i) * width;
      const bool zero = (i / kSignBlock) % 3 == 1 || !std::isfinite(testing::value_of(dtype, at));
      if (zero) std::memset(at, 0, width - 1), at[width - 1] &= 0x80;
    }
    const GuardedBytes there(values.data(), values.size());
    Trio bits(random_bits(misaligned + testing::sign_bytes(first + count) + 1, rng));
    Trio present(presence ? random_bits(static_cast<size_t>(presence_bytes(first + count)) + 1, rng) : Bits{});
    Trio mark(Bits(4));
    SignItem item{dtype, first, count, values.data(), bytes(bits.cpu) + misaligned};
    item.zero_is_plus = rng.chance(0.5);
    item.presence = presence ? bytes(present.cpu) : nullptr;
    item.nonfinite = looks ? reinterpret_cast<uint32_t*>(mark.cpu.data()) : nullptr;
    cpu->pack_signs(item, nullptr);

    Bits tail(bits.wanted.begin() + static_cast<ptrdiff_t>(misaligned), bits.wanted.end());
    uint32_t found = 0;
    pack(item, values, tail, present.wanted, &found);
    std::copy(tail.begin(), tail.end(), bits.wanted.begin() + static_cast<ptrdiff_t>(misaligned));
    mark.wanted[0] = static_cast<unsigned char>(looks && found);

    item.values = there.data(), item.bits = bits.device.data() + misaligned;
    item.presence = present.device.data();
    if (looks) item.nonfinite = reinterpret_cast<uint32_t*>(mark.device.data());
    device.backend->pack_signs(item, device.queue);
    differing += bits.differing() + present.differing() + mark.differing();

    elements += count, with_presence += presence, looked += looks, nonfinite += looks && found;
    for (int64_t i = 0; i < count; ++i) plus += testing::sign_of(tail, first + i);
    for (int64_t b = first / kSignBlock; presence && b * kSignBlock < first + count; ++b)
      absent += !testing::sign_of(present.wanted, b);
  }
  std::printf(
      "%d pieces of %lld elements, %lld of them +, %lld with presence (%lld blocks without), %lld of %lld marked as "
      "not "
      "finite: %lld bits differ from the CPU's or the definition's\n",
      cases, ll(elements), ll(plus), ll(with_presence), ll(absent), ll(nonfinite), ll(looked), ll(differing));
  EXPECT_EQ(differing, 0);
  EXPECT_GT(plus, elements / 4);
  EXPECT_LT(plus, elements * 2 / 3);
  EXPECT_GT(absent, cases / 6);  // enough for a wrong presence to show; a third on average, with a long tail
  EXPECT_GT(nonfinite, looked / 4);
  EXPECT_LT(nonfinite, looked * 3 / 4);
}

TEST(DeviceSigns, UnpackingGivesTheBitsOfTheCpu) {
  LT_NEEDS_DEVICE();
  auto rng = testing::seeded("unpacking on the device", 94);
  TestDevice& device = TestDevice::get();
  const auto cpu = open_backend("cpu", "");
  const int cases = testing::share_of(3000);
  int64_t differing = 0, elements = 0, zeros = 0, scaled = 0;
  for (int c = 0; c < cases; ++c) {
    const auto dtype = static_cast<DType>(rng.below(3));
    const bool marked = rng.chance(0.3), presence = rng.chance(0.3), scales = rng.chance(0.4);
    const int64_t count = testing::some_count(rng);
    const int64_t first = presence || scales ? kSignAlignment * rng.below(3) : rng.chance(0.3) ? 0 : rng.below(300);
    const auto misaligned = static_cast<size_t>(rng.below(8)), width = static_cast<size_t>(dtype_bytes(dtype));
    Bits bits = random_bits(misaligned + testing::sign_bytes(first + count), rng),
         marks = random_bits(bits.size(), rng);
    Bits present = testing::random_presence(first + count, rng);
    std::vector<uint16_t> scale(static_cast<size_t>((first + count + kSignAlignment - 1) / kSignAlignment));
    for (uint16_t& s : scale) s = testing::bf16_nearest(rng.chance(0.1) ? 0 : std::fabs(rng.over_binades(-40, 14)));
    Trio values(Bits(static_cast<size_t>(count) * width));
    const GuardedBytes bits_there(bits.data(), bits.size());
    const GuardedBytes marks_there(marks.data(), marks.size());
    const GuardedBytes present_there(present.data(), present.size());
    const GuardedBytes scale_there(scale.data(), scale.size() * 2);

    SignItem item{dtype, first, count, values.cpu.data(), bytes(bits) + misaligned};
    if (marked) item.zeros = bytes(marks) + misaligned;
    if (presence) item.presence = bytes(present);
    if (scales) item.scales = scale.data();
    cpu->unpack_signs(item, nullptr);
    item.values = values.device.data(), item.bits = bits_there.data() + misaligned;
    if (marked) item.zeros = marks_there.data() + misaligned;
    if (presence) item.presence = present_there.data();
    if (scales) item.scales = reinterpret_cast<const uint16_t*>(scale_there.data());
    device.backend->unpack_signs(item, device.queue);

    for (int64_t i = 0; i < count; ++i) {
      const auto at = first + i, bit = at + static_cast<int64_t>(8 * misaligned);
      const bool zero =
          (marked && testing::sign_of(marks, bit)) || (presence && !testing::sign_of(present, at / kSignBlock));
      const double size = scales ? testing::bf16_value(scale[static_cast<size_t>(at / kSignAlignment)]) : 1;
      const double x = testing::sign_of(bits, bit) ? size : -size;
      uint32_t raw = 0;
      if (const auto f = static_cast<float>(x); dtype == DType::kF32)
        std::memcpy(&raw, &f, sizeof raw);
      else
        raw = dtype == DType::kBF16 ? testing::bf16_nearest(x) : testing::f16_nearest(x);
      if (zero) raw = 0;
      std::memcpy(values.wanted.data() + static_cast<size_t>(i) * width, &raw, width);
      zeros += zero;
    }
    differing += values.differing();
    elements += count, scaled += scales;
  }
  std::printf(
      "%d pieces of %lld elements, %lld pieces scaled, %lld zeros: %lld bits differ from the CPU's or the "
      "definition's\n",
      cases, ll(elements), ll(scaled), ll(zeros), ll(differing));
  EXPECT_EQ(differing, 0);
  EXPECT_GT(zeros, elements / 10);
}

// The backend refuses what it cannot do before anything is queued, in the CPU backend's words.
TEST(DeviceSigns, RefusesWhatMakesNoSense) {
  LT_NEEDS_DEVICE();
  TestDevice& device = TestDevice::get();
  SignItem item{DType::kF32, 0, 8, nullptr, nullptr};
  EXPECT_NE(testing::message_of(ErrorKind::kInvalidArgument, [&] { device.backend->pack_signs(item, nullptr); })
                .find("got no values"),
            std::string::npos);
  VoteItem vote;
  vote.count = 8;
  EXPECT_NE(testing::message_of(ErrorKind::kInvalidArgument, [&] { device.backend->vote_signs(vote, 1, nullptr); })
                .find("no memory for the result"),
            std::string::npos);
}

}  // namespace
}  // namespace lowtide
