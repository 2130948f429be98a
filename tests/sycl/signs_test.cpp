// Signs packed and unpacked on the device, on the CPU, and by their definition: one at a time, the same bits.
#include "backend/sycl/host/pointers.h"
#include "sycl/sign_support.h"

namespace lowtide {
namespace {

using testing::Bits;
using testing::bytes;
using testing::DeviceBytes;
using testing::ll;
using testing::random_bits;
using testing::SyclDevice;
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

TEST(SyclSigns, PackingGivesTheBitsOfTheCpu) {
  LT_NEEDS_SYCL();
  auto rng = testing::seeded("packing on the device", 91);
  SyclDevice& sycl = SyclDevice::get();
  const auto cpu = open_backend("cpu", "");
  constexpr int kCases = 3000;
  int64_t differing = 0, elements = 0, plus = 0, with_presence = 0, absent = 0, nonfinite = 0, looked = 0;
  for (int c = 0; c < kCases; ++c) {
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
    const DeviceBytes there(values.data(), values.size(), *sycl.queue);
    Trio bits(random_bits(misaligned + testing::sign_bytes(first + count) + 1, rng), *sycl.queue);
    Trio present(presence ? random_bits(static_cast<size_t>(presence_bytes(first + count)) + 1, rng) : Bits{},
                 *sycl.queue);
    Trio mark(Bits(4), *sycl.queue);
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
    sycl.backend->pack_signs(item, sycl.queue.get());
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
      kCases, ll(elements), ll(plus), ll(with_presence), ll(absent), ll(nonfinite), ll(looked), ll(differing));
  EXPECT_EQ(differing, 0);
  EXPECT_GT(plus, elements / 4);
  EXPECT_LT(plus, elements * 2 / 3);
  EXPECT_GT(absent, 1000);
  EXPECT_GT(nonfinite, looked / 4);
  EXPECT_LT(nonfinite, looked * 3 / 4);
}

TEST(SyclSigns, UnpackingGivesTheBitsOfTheCpu) {
  LT_NEEDS_SYCL();
  auto rng = testing::seeded("unpacking on the device", 94);
  SyclDevice& sycl = SyclDevice::get();
  const auto cpu = open_backend("cpu", "");
  constexpr int kCases = 3000;
  int64_t differing = 0, elements = 0, zeros = 0, scaled = 0;
  for (int c = 0; c < kCases; ++c) {
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
    Trio values(Bits(static_cast<size_t>(count) * width), *sycl.queue);
    const DeviceBytes bits_there(bits.data(), bits.size(), *sycl.queue);
    const DeviceBytes marks_there(marks.data(), marks.size(), *sycl.queue);
    const DeviceBytes present_there(present.data(), present.size(), *sycl.queue);
    const DeviceBytes scale_there(scale.data(), scale.size() * 2, *sycl.queue);

    SignItem item{dtype, first, count, values.cpu.data(), bytes(bits) + misaligned};
    if (marked) item.zeros = bytes(marks) + misaligned;
    if (presence) item.presence = bytes(present);
    if (scales) item.scales = scale.data();
    cpu->unpack_signs(item, nullptr);
    item.values = values.device.data(), item.bits = bits_there.data() + misaligned;
    if (marked) item.zeros = marks_there.data() + misaligned;
    if (presence) item.presence = present_there.data();
    if (scales) item.scales = reinterpret_cast<const uint16_t*>(scale_there.data());
    sycl.backend->unpack_signs(item, sycl.queue.get());

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
      kCases, ll(elements), ll(scaled), ll(zeros), ll(differing));
  EXPECT_EQ(differing, 0);
  EXPECT_GT(zeros, elements / 10);
}

// What the backend cannot do is said before anything is queued, in the CPU backend's words.
TEST(SyclSigns, RefusesWhatMakesNoSense) {
  LT_NEEDS_SYCL();
  SyclDevice& sycl = SyclDevice::get();
  SignItem item{DType::kF32, 0, 8, nullptr, nullptr};
  EXPECT_NE(testing::message_of(ErrorKind::kInvalidArgument, [&] { sycl.backend->pack_signs(item, nullptr); })
                .find("got no values"),
            std::string::npos);
  VoteItem vote;
  vote.count = 8;
  EXPECT_NE(testing::message_of(ErrorKind::kInvalidArgument, [&] { sycl.backend->vote_signs(vote, 1, nullptr); })
                .find("no memory for the result"),
            std::string::npos);
}

// Every array of every item is looked at, on devices that cannot address all memory.
TEST(SyclSigns, RefuseMemoryOfNoContext) {
  LT_NEEDS_SYCL();
  SyclDevice& sycl = SyclDevice::get();
  const sycl_host::PointerCheck check(sycl.queue->get_context(), false), lenient(sycl.queue->get_context(), true);
  Bits host(64);
  const DeviceBytes device(host.data(), host.size(), *sycl.queue);
  std::byte* const bad = bytes(host);
  std::byte* const good = device.data();
  auto* const good16 = reinterpret_cast<uint16_t*>(good);
  auto* const bad16 = reinterpret_cast<uint16_t*>(bad);
  int64_t arrays = 0;
  const auto refuses = [&](auto item, const char* what, auto&& spoil) {
    check(item, 0);
    spoil(item);
    const std::string message = testing::message_of(ErrorKind::kInvalidArgument, [&] { check(item, 0); });
    EXPECT_NE(message.find(std::string("got ") + what + " of item"), std::string::npos) << message;
    lenient(item, 0);
    ++arrays;
  };
  SignItem sign{DType::kF32, 0, 8, good, good, good, good, true, reinterpret_cast<uint32_t*>(good), good16};
  refuses(sign, "values", [&](SignItem& i) { i.values = bad; });
  refuses(sign, "bits", [&](SignItem& i) { i.bits = bad; });
  refuses(sign, "the marks of zeros", [&](SignItem& i) { i.zeros = bad; });
  refuses(sign, "the presence", [&](SignItem& i) { i.presence = bad; });
  refuses(sign, "the scales", [&](SignItem& i) { i.scales = bad16; });
  refuses(sign, "the mark of what is not finite", [&](SignItem& i) { i.nonfinite = reinterpret_cast<uint32_t*>(bad); });

  // The first voter is absent, and its arrays are not looked at.
  const std::byte *const of_good[] = {bad, good}, *const of_bad[] = {good, bad};
  const uint16_t *const scales_good[] = {bad16, good16}, *const scales_bad[] = {good16, bad16};
  std::byte *const planes_good[] = {good, good}, *const planes_bad[] = {good, bad};
  const uint32_t weights[] = {0, 1};
  VoteItem vote;
  vote.count = 8, vote.ballots = vote.presence = of_good, vote.weights = weights;
  vote.result = vote.result_presence = vote.zeros = good, vote.previous = good;
  refuses(vote, "the ballot", [&](VoteItem& i) { i.ballots = of_bad; });
  refuses(vote, "the presence", [&](VoteItem& i) { i.presence = of_bad; });
  refuses(vote, "the result", [&](VoteItem& i) { i.result = bad; });
  refuses(vote, "the result's presence", [&](VoteItem& i) { i.result_presence = bad; });
  refuses(vote, "the marks of zeros", [&](VoteItem& i) { i.zeros = bad, i.ties = TieRule::kZero; });
  refuses(vote, "the earlier result", [&](VoteItem& i) { i.previous = bad, i.ties = TieRule::kPrevious; });
  CountItem count{8, of_good, weights, planes_good};
  refuses(count, "the ballot", [&](CountItem& i) { i.ballots = of_bad; });
  refuses(count, "the plane", [&](CountItem& i) { i.planes = planes_bad; });

  const int64_t sizes[] = {8};
  const Layout layout = Layout::make(sizes, {});
  ApplyItem apply{DType::kF32, 0, good, &layout, good, good, good, 1.f, 0.f};
  refuses(apply, "the parameter", [&](ApplyItem& i) { i.param = bad; });
  refuses(apply, "bits", [&](ApplyItem& i) { i.bits = bad; });
  refuses(apply, "the marks of zeros", [&](ApplyItem& i) { i.zeros = bad; });
  refuses(apply, "the presence", [&](ApplyItem& i) { i.presence = bad; });

  FeedbackItem feedback;
  feedback.count = 8, feedback.ballots = of_good, feedback.ballot_scales = scales_good, feedback.weights = weights;
  feedback.codes = good, feedback.scales = reinterpret_cast<float*>(good);
  feedback.bits = good, feedback.bit_scales = good16;
  refuses(feedback, "values", [&](FeedbackItem& i) { i.values = bad; });
  refuses(feedback, "the ballot", [&](FeedbackItem& i) { i.ballots = of_bad; });
  refuses(feedback, "the ballot's scales", [&](FeedbackItem& i) { i.ballot_scales = scales_bad; });
  refuses(feedback, "codes", [&](FeedbackItem& i) { i.codes = bad; });
  refuses(feedback, "scales", [&](FeedbackItem& i) { i.scales = reinterpret_cast<float*>(bad); });
  refuses(feedback, "bits", [&](FeedbackItem& i) { i.bits = bad; });
  refuses(feedback, "the scales of bits", [&](FeedbackItem& i) { i.bit_scales = bad16; });

  // A step with a ballot has no parameter to look at.
  BallotTarget good_target{good, good, 0, true}, bad_bits = good_target, bad_presence = good_target;
  bad_bits.bits = bad, bad_presence.presence = bad;
  StepItem step;
  step.param = bad, step.grad = good, step.param_layout = step.grad_layout = &layout, step.ballot = &good_target;
  refuses(step, "the ballot", [&](StepItem& i) { i.ballot = &bad_bits; });
  refuses(step, "the ballot's presence", [&](StepItem& i) { i.ballot = &bad_presence; });
  std::printf("%lld arrays of host memory refused\n", ll(arrays));
}

}  // namespace
}  // namespace lowtide
