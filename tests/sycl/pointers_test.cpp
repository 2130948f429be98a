// Memory that the device cannot address is refused, whichever array of an item it is.
#include "backend/sycl/host/sycl_device.h"
#include "sycl/sycl_support.h"

namespace lowtide {
namespace {

using testing::sycl_queue;
using testing::TestDevice;

// Every array of every item is looked at, on devices that cannot address all memory.
TEST(SyclPointers, RefuseMemoryOfNoContext) {
  LT_NEEDS_DEVICE();
  const sycl_host::PointerCheck check(sycl_queue().get_context(), false), lenient(sycl_queue().get_context(), true);
  std::vector<std::byte> host(64);
  const testing::GuardedBytes device(host.data(), host.size());
  std::byte* const bad = host.data();
  std::byte* const good = device.data();
  auto* const good16 = reinterpret_cast<uint16_t*>(good);
  auto* const bad16 = reinterpret_cast<uint16_t*>(bad);
  int64_t arrays = 0;
  const auto refuses = [&](auto item, const char* what, auto&& spoil) {
    check(item, 0);
    spoil(item);
    const std::string message = testing::refusal([&] { check(item, 0); });
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
  refuses(sign, "the mark of non-finite values", [&](SignItem& i) { i.nonfinite = reinterpret_cast<uint32_t*>(bad); });

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
  std::printf("%lld arrays of host memory refused\n", static_cast<long long>(arrays));
}

}  // namespace
}  // namespace lowtide
