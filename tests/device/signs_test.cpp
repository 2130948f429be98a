// Packing and unpacking signs gives the same bits on the device and on the CPU.
#include "device/sign_support.h"
#include "lowtide/lowtide_sign.h"
#include "lowtide/sign.h"

namespace lowtide::testing {
namespace {

TEST(DeviceSigns, PackingGivesTheBitsOfTheCpu) {
  LT_NEEDS_DEVICE();
  auto rng = seeded("packing on the device", 91);
  TestDevice& device = TestDevice::get();
  const auto cpu = open_backend("cpu", "");
  const int cases = share_of(3000);
  int64_t differing = 0, elements = 0, plus = 0, with_presence = 0, absent = 0, nonfinite = 0, looked = 0;
  for (int c = 0; c < cases; ++c) {
    const auto dtype = static_cast<DType>(rng.below(3));
    const bool presence = rng.chance(0.4), looks = rng.chance(0.4);
    const int64_t count = some_count(rng);
    const int64_t first = presence ? kSignAlignment * rng.below(3) : rng.chance(0.3) ? 0 : rng.below(300);
    const auto misaligned = static_cast<size_t>(rng.below(8)), width = static_cast<size_t>(dtype_bytes(dtype));
    Bits values = random_elements(dtype, count, rng);
    const bool tame = rng.chance(0.5);  // only finite values, with blocks of zeros
    for (int64_t i = 0; tame && i < count; ++i) {
      const auto at = values.data() + static_cast<size_t>(i) * width;
      const bool zero = (i / kSignBlock) % 3 == 1 || !std::isfinite(value_of(dtype, at));
      if (zero) std::memset(at, 0, width - 1), at[width - 1] &= 0x80;
    }
    const GuardedBytes there(values.data(), values.size());
    Twin bits(random_bytes(misaligned + sign_bytes(first + count) + 1, rng));
    Twin present(presence ? random_bytes(static_cast<size_t>(presence_bytes(first + count)) + 1, rng) : Bits{});
    Twin mark(Bits(4));
    SignItem item{dtype, first, count, values.data(), bytes(bits.cpu) + misaligned};
    item.zero_is_plus = rng.chance(0.5);
    item.big = first % 8 == 0 && rng.chance(0.5);
    item.presence = presence ? bytes(present.cpu) : nullptr;
    item.nonfinite = looks ? reinterpret_cast<uint32_t*>(mark.cpu.data()) : nullptr;
    cpu->pack_signs(item, nullptr);

    item.values = there.data(), item.bits = bits.device.data() + misaligned;
    item.presence = present.device.data();
    if (looks) item.nonfinite = reinterpret_cast<uint32_t*>(mark.device.data());
    device.backend->pack_signs(item, device.queue);
    differing += bits.differing() + present.differing() + mark.differing();

    elements += count, looked += looks, nonfinite += mark.cpu[0];
    const int64_t flip = item.big ? 7 : 0;  // reverses the order within a byte
    for (int64_t i = 0; i < count; ++i)
      plus += sign_of(bits.cpu, static_cast<int64_t>(8 * misaligned) + ((first + i) ^ flip));
    with_presence += presence;
    for (int64_t b = first / kSignBlock; presence && b * kSignBlock < first + count; ++b)
      absent += !sign_of(present.cpu, b);
  }
  figure(
      "{} pieces of {} elements, {} of them +, {} with presence ({} blocks without), {} of {} marked as not finite: {} "
      "bits differ from the CPU's",
      cases, elements, plus, with_presence, absent, nonfinite, looked, differing);
  EXPECT_EQ(differing, 0);
  EXPECT_GT(plus, elements / 4);
  EXPECT_LT(plus, elements * 2 / 3);
  EXPECT_GT(absent, cases / 6);  // enough for a wrong presence to show; a third on average, with a long tail
  EXPECT_GT(nonfinite, looked / 4);
  EXPECT_LT(nonfinite, looked * 3 / 4);
}

TEST(DeviceSigns, UnpackingGivesTheBitsOfTheCpu) {
  LT_NEEDS_DEVICE();
  auto rng = seeded("unpacking on the device", 94);
  TestDevice& device = TestDevice::get();
  const auto cpu = open_backend("cpu", "");
  const int cases = share_of(3000);
  int64_t differing = 0, elements = 0, zeros = 0, scaled = 0;
  for (int c = 0; c < cases; ++c) {
    const auto dtype = static_cast<DType>(rng.below(3));
    const bool marked = rng.chance(0.3), presence = rng.chance(0.3), scales = rng.chance(0.4);
    const int64_t count = some_count(rng);
    const int64_t first = presence || scales ? kSignAlignment * rng.below(3) : rng.chance(0.3) ? 0 : rng.below(300);
    const auto misaligned = static_cast<size_t>(rng.below(8)), width = static_cast<size_t>(dtype_bytes(dtype));
    Bits bits = random_bytes(misaligned + sign_bytes(first + count), rng), marks = random_bytes(bits.size(), rng);
    Bits present = random_presence(first + count, rng);
    std::vector<uint16_t> scale(static_cast<size_t>((first + count + kSignAlignment - 1) / kSignAlignment));
    for (uint16_t& s : scale) s = bf16_nearest(rng.chance(0.1) ? 0 : std::fabs(rng.over_binades(-40, 14)));
    Twin values(Bits(static_cast<size_t>(count) * width));
    const GuardedBytes bits_there(bits.data(), bits.size());
    const GuardedBytes marks_there(marks.data(), marks.size());
    const GuardedBytes present_there(present.data(), present.size());
    const GuardedBytes scale_there(scale.data(), scale.size() * 2);

    SignItem item{dtype, first, count, values.cpu.data(), bytes(bits) + misaligned};
    item.big = first % 8 == 0 && rng.chance(0.5);
    if (marked) item.zeros = bytes(marks) + misaligned;
    if (presence) item.presence = bytes(present);
    if (scales) item.scales = scale.data();
    cpu->unpack_signs(item, nullptr);
    item.values = values.device.data(), item.bits = bits_there.data() + misaligned;
    if (marked) item.zeros = marks_there.data() + misaligned;
    if (presence) item.presence = present_there.data();
    if (scales) item.scales = reinterpret_cast<const uint16_t*>(scale_there.data());
    device.backend->unpack_signs(item, device.queue);

    for (int64_t at = first; at < first + count; ++at)
      zeros += (marked && sign_of(marks, (at ^ (item.big ? 7 : 0)) + static_cast<int64_t>(8 * misaligned))) ||
               (presence && !sign_of(present, at / kSignBlock));
    differing += values.differing();
    elements += count, scaled += scales;
  }
  figure("{} pieces of {} elements, {} pieces scaled, {} zeros: {} bits differ from the CPU's or the definition's",
         cases, elements, scaled, zeros, differing);
  EXPECT_EQ(differing, 0);
  EXPECT_GT(zeros, elements / 10);
}

// The public C++ and C functions, on their own queues, give the results of host memory.
TEST(DeviceSigns, PublicFunctionsTakeAQueueAndAnOrder) {
  LT_NEEDS_DEVICE();
  auto rng = seeded("public functions on the device", 96);
  const TestDevice& device = TestDevice::get();
  const sign::Queue queue(device.name, nullptr, device.target);
  lt_device* handle = nullptr;
  ASSERT_EQ(lt_device_open(device.name.c_str(), device.target.c_str(), nullptr, &handle), LT_OK) << lt_last_error();
  const int cases = share_of(400);
  int64_t differing = 0, elements = 0;
  for (int c = 0; c < cases; ++c) {
    const bool in_c = rng.chance(0.5);
    const int64_t count = some_count(rng) + 1;
    const auto dtype = static_cast<DType>(rng.below(3));
    const sign::Options here{rng.chance(0.5) ? sign::BitOrder::kBig : sign::BitOrder::kLittle};
    sign::Options there = here;
    there.queue = &queue;
    lt_sign_options in_c_there = LT_SIGN_OPTIONS_INIT;
    in_c_there.bit_order = static_cast<int32_t>(here.order), in_c_there.device = handle;
    const auto wait = [&] { in_c ? void(lt_device_synchronize(handle, nullptr)) : queue.synchronize(); };
    const size_t size = sign_bytes(count);
    const auto wide = static_cast<int64_t>(size);
    const auto span = [&](std::byte* p) { return std::span(p, size); };

    const Bits values = random_elements(dtype, count, rng);
    const GuardedBytes values_there(values.data(), values.size());
    Twin bits(random_bytes(size, rng)), back(Bits(values.size()));
    sign::pack(dtype, values.data(), count, span(bytes(bits.cpu)), here);
    sign::unpack(span(bytes(bits.cpu)), dtype, back.cpu.data(), count, {}, here);
    if (in_c) {
      const auto type = static_cast<int32_t>(dtype);
      EXPECT_EQ(lt_sign_pack(values_there.data(), type, count, bits.device.data(), wide, &in_c_there), LT_OK);
      EXPECT_EQ(lt_sign_unpack(bits.device.data(), wide, back.device.data(), type, count, nullptr, &in_c_there), LT_OK);
    } else {
      sign::pack(dtype, values_there.data(), count, span(bits.device.data()), there);
      sign::unpack(span(bits.device.data()), dtype, back.device.data(), count, {}, there);
    }
    wait();
    differing += bits.differing() + back.differing();

    Twin other(random_bytes(size, rng)), result(random_bytes(size, rng)), zeros(random_bytes(size, rng));
    sign::Vote vote{.count = count, .ballots = {}};
    vote.ties = rng.chance(0.5) ? sign::Ties::kZero : sign::Ties::kHash;
    vote.seed = rng.next(), vote.step = rng.next(), vote.offset = static_cast<uint64_t>(rng.below(1000));
    const bool marks = vote.ties == sign::Ties::kZero;
    const std::byte* const ballots[] = {bytes(bits.cpu), bytes(other.cpu)};
    const std::byte* const ballots_there[] = {bits.device.data(), other.device.data()};
    vote.ballots = ballots, vote.options = here;
    sign::majority(vote, span(bytes(result.cpu)), marks ? span(bytes(zeros.cpu)) : std::span<std::byte>());
    if (in_c) {
      lt_majority_options how = LT_MAJORITY_OPTIONS_INIT;
      how.bit_order = static_cast<int32_t>(here.order), how.ties = static_cast<int64_t>(vote.ties);
      how.seed = vote.seed, how.step = vote.step, how.offset = vote.offset, how.device = handle;
      const void* const rows[] = {bits.device.data(), other.device.data()};
      EXPECT_EQ(
          lt_sign_majority(rows, 2, count, result.device.data(), wide, marks ? zeros.device.data() : nullptr, &how),
          LT_OK);
    } else {
      vote.ballots = ballots_there, vote.options = there;
      sign::majority(vote, span(result.device.data()), marks ? span(zeros.device.data()) : std::span<std::byte>());
    }
    wait();
    differing += result.differing() + zeros.differing();
    elements += count;
  }
  figure("{} arrays of {} elements packed, unpacked and voted on: {} bits differ from the host's", cases, elements,
         differing);
  EXPECT_EQ(differing, 0);
  lt_device_close(handle);
  expect_refusal([] { sign::Queue("cpu"); }, "got backend 'cpu', whose memory is the host's");
}

// The backend refuses impossible items before it queues anything, with the CPU backend's messages.
TEST(DeviceSigns, RefusesWhatMakesNoSense) {
  LT_NEEDS_DEVICE();
  TestDevice& device = TestDevice::get();
  SignItem item{DType::kF32, 0, 8, nullptr, nullptr};
  expect_refusal([&] { device.backend->pack_signs(item, nullptr); }, "got no values");
  VoteItem vote;
  vote.count = 8;
  expect_refusal([&] { device.backend->vote_signs(vote, 1, nullptr); }, "no memory for the result");
}

}  // namespace
}  // namespace lowtide::testing
