// Steps by signs, and ballots in place of steps, give the same bits on the device and on the CPU.
#include "device/sign_support.h"

namespace lowtide::testing {
namespace {

TEST(DeviceSignSteps, GiveTheBitsOfTheCpu) {
  LT_NEEDS_DEVICE();
  auto rng = seeded("steps by signs on the device", 96);
  TestDevice& device = TestDevice::get();
  const auto cpu = open_backend("cpu", "");
  const int calls = share_of(400);
  int64_t items = 0, elements = 0, strided = 0, with_presence = 0, still = 0, differing = 0;
  struct Case {
    Layout layout;
    Bits start, bits, zeros, presence;
    Twin param;
    GuardedBytes bits_there, zeros_there, presence_there;
    ApplyItem item;
  };
  for (int call = 0; call < calls; ++call) {
    std::deque<Case> cases;
    for (int64_t n = rng.between(1, 8); n > 0; --n) {
      const auto dtype = static_cast<DType>(rng.below(3));
      const int64_t length = some_count(rng), first = kSignAlignment * rng.below(3);
      const int64_t sizes[] = {rng.chance(0.05) ? 0 : rng.between(1, 5), length};
      const bool gaps = rng.chance(0.3);
      const int64_t strides[] = {gaps ? 1 : length, gaps ? sizes[0] + rng.below(3) : 1};
      Layout layout = Layout::make(sizes, strides);
      std::vector<std::byte> values(static_cast<size_t>(layout.extent * dtype_bytes(dtype)));
      for (int64_t i = 0; i < layout.extent; ++i) put(values, dtype, i, rng.over_binades(-8, 3));
      const auto* const from = reinterpret_cast<const unsigned char*>(values.data());
      const Bits start(from, from + values.size());
      Bits bits = random_bytes(sign_bytes(first + layout.numel), rng), zeros = random_bytes(bits.size(), rng);
      Bits presence = random_presence(first + layout.numel, rng);
      Case& c = cases.emplace_back(Case{layout,
                                        start,
                                        bits,
                                        zeros,
                                        presence,
                                        Twin(start),
                                        GuardedBytes(bits.data(), bits.size()),
                                        GuardedBytes(zeros.data(), zeros.size()),
                                        GuardedBytes(presence.data(), presence.size()),
                                        {}});
      c.item = {dtype, first, c.param.cpu.data(), &c.layout, bytes(c.bits), nullptr, nullptr, 0, 0};
      if (rng.chance(0.3)) c.item.zeros = bytes(c.zeros);
      if (rng.chance(0.5)) c.item.presence = bytes(c.presence);
      c.item.lr = static_cast<float>(rng.over_binades(-12, 0)), c.item.decay = rng.chance(0.5) ? 0.f : 0.01f;
      ++items, elements += layout.numel, strided += !layout.contiguous, with_presence += c.item.presence != nullptr;
    }
    std::vector<ApplyItem> on_cpu, on_device;
    for (Case& c : cases) {
      on_cpu.push_back(c.item);
      ApplyItem& there = on_device.emplace_back(c.item);
      there.param = c.param.device.data(), there.bits = c.bits_there.data();
      if (there.zeros) there.zeros = c.zeros_there.data();
      if (there.presence) there.presence = c.presence_there.data();
    }
    cpu->apply_signs(on_cpu, 1, nullptr);
    device.backend->apply_signs(on_device, 1, device.queue);
    for (Case& c : cases) differing += c.param.differing(), still += c.layout.numel && c.param.cpu == c.start;
  }
  figure(
      "{} parameters in {} calls, {} elements, {} strided, {} with presence, {} that keep still: {} bits differ from "
      "the CPU's",
      items, calls, elements, strided, with_presence, still, differing);
  EXPECT_EQ(differing, 0);
  EXPECT_LT(still, items / 4) << "control: steps must move something";
}

// Returns the part of `whole` from block `first` on.
StepItem part_of(StepItem whole, const StepCase& of, int64_t first, int64_t blocks) {
  const int64_t begin = elements_before_block(of.layout.row_length, first, kBlockElements);
  whole.first_block = first, whole.blocks = blocks;
  for (int k = 0; k < kMaxStates; ++k) {
    const StateFormat& format = format_of(of.rule, of.codec, k);
    if (whole.codes[k]) whole.codes[k] = static_cast<std::byte*>(whole.codes[k]) + format.code_bytes(begin);
    if (whole.scales[k]) whole.scales[k] += first * format.scales;
  }
  return whole;
}

// Makes ballots in parts, in any order, in one call or several.
TEST(DeviceSignSteps, BallotsAreThoseOfTheCpu) {
  LT_NEEDS_DEVICE();
  auto rng = seeded("ballots on the device", 97);
  TestDevice& device = TestDevice::get();
  const auto cpu = open_backend("cpu", "");
  int64_t grid = 0, cases = 0, parts = 0, signs = 0, plus = 0, absent = 0, differing = 0, states_differing = 0;
  for (const int rule : tested_rules())
    for (int codec = 0; codec < std::ssize(codecs()); ++codec) {
      if (!in_share(grid++)) continue;  // some runtimes take seconds to compile a kernel on its first run
      for (int round = 0; round < 22; ++round)
        for (int grad = 0; grad < 3; ++grad, ++cases) {
          const auto p = static_cast<DType>(rng.below(3));
          StepCase got(rule, codec, p, static_cast<DType>(grad), rng.between(1, 7), rng.between(1, 900), rng);
          const int64_t n = got.layout.numel, first = kSignAlignment * rng.below(3);
          for (int64_t i = n / 3; i < n / 2; ++i) put(got.grad, got.grad_dtype, i, 0);
          if (rng.chance(0.5)) got.lr = -1, got.weight_decay = 0;
          got.set_step(2);
          StepCase on_cpu = got;
          const auto misaligned = static_cast<size_t>(rng.below(8));
          Twin bits(Bits(misaligned + sign_bytes(first + n)));
          Twin present(Bits(misaligned + static_cast<size_t>(presence_bytes(first + n))));
          const bool zero_is_plus = rng.chance(0.5), with_presence = rng.chance(0.8);
          BallotTarget target{bytes(bits.cpu) + misaligned, bytes(present.cpu) + misaligned, first, zero_is_plus};
          if (!with_presence) target.presence = nullptr;
          StepItem item = on_cpu.item();
          item.param = nullptr, item.ballot = &target;
          cpu->step({&item, 1}, 1, false, nullptr);
          const auto shift = static_cast<int64_t>(8 * misaligned);
          for (int64_t i = 0; i < n; ++i) plus += sign_of(bits.cpu, shift + first + i);
          for (int64_t b = first / kSignBlock; with_presence && b * kSignBlock < first + n; ++b)
            absent += !sign_of(present.cpu, shift + b);

          DeviceCase there(got);
          BallotTarget device_target = target;
          device_target.bits = bits.device.data() + misaligned;
          if (with_presence) device_target.presence = present.device.data() + misaligned;
          StepItem whole = there.item();
          whole.param = nullptr, whole.ballot = &device_target;
          std::vector<StepItem> items;
          const int64_t blocks = got.layout.blocks(kBlockElements);
          for (int64_t at = 0, next = 0; at < blocks; at = next) {
            next = std::min(blocks, at + rng.between(1, 8));
            items.push_back(part_of(whole, got, at, next - at));
          }
          for (size_t i = items.size(); i > 1; --i)
            std::swap(items[i - 1], items[static_cast<size_t>(rng.below(static_cast<int64_t>(i)))]);
          parts += std::ssize(items);
          if (rng.chance(0.5))
            device.backend->step(items, 1, false, device.queue);
          else
            for (const StepItem& one : items) device.backend->step({&one, 1}, 1, false, device.queue);
          differing += bits.differing() + present.differing();
          const std::vector<std::byte> untouched = got.param;
          there.fetch();
          EXPECT_EQ(got.param, untouched);
          states_differing += differing_bytes(got, on_cpu);
          signs += n;
        }
    }
  figure(
      "{} ballots of {} signs in {} parts, {} +, {} blocks without presence: {} bits and {} bytes of states differ "
      "from the CPU's",
      cases, signs, parts, plus, absent, differing, states_differing);
  EXPECT_EQ(differing, 0);
  EXPECT_EQ(states_differing, 0);
  EXPECT_GE(absent, cases / 32);
  EXPECT_GT(plus, signs / 4);
  EXPECT_LT(plus, signs * 3 / 4);
}

// One call holds items that step and items that make ballots.
TEST(DeviceSignSteps, BallotsAndStepsShareACall) {
  LT_NEEDS_DEVICE();
  auto rng = seeded("ballots among steps", 98);
  TestDevice& device = TestDevice::get();
  const auto cpu = open_backend("cpu", "");
  std::deque<StepCase> got, wanted;
  std::deque<DeviceCase> there;
  std::deque<Twin> bits;
  std::deque<BallotTarget> targets;
  std::vector<StepItem> on_cpu, on_device;
  for (int i = 0; i < share_of(300); ++i) {
    got.emplace_back(any_rule(rng), static_cast<int>(rng.below(std::ssize(codecs()))), static_cast<DType>(rng.below(3)),
                     static_cast<DType>(rng.below(3)), rng.between(1, 3), rng.between(1, 700), rng);
    wanted.push_back(got.back());
    there.emplace_back(got.back());
    on_cpu.push_back(wanted.back().item()), on_device.push_back(there.back().item());
    if (i % 2) continue;
    Twin& of = bits.emplace_back(Bits(sign_bytes(got.back().layout.numel)));
    on_cpu.back().ballot = &targets.emplace_back(BallotTarget{bytes(of.cpu), nullptr, 0, true});
    on_device.back().ballot = &targets.emplace_back(BallotTarget{of.device.data(), nullptr, 0, true});
  }
  cpu->step(on_cpu, 1, false, nullptr);
  device.backend->step(on_device, 1, false, device.queue);
  int64_t differing = 0, set = 0;
  for (size_t i = 0; i < got.size(); ++i) there[i].fetch(), differing += differing_bytes(got[i], wanted[i]);
  for (Twin& of : bits) {
    differing += of.differing();
    for (const unsigned char byte : of.cpu) set += std::popcount(byte);
  }
  figure("{} items, {} of them ballots of {} signs +: {} bytes or bits differ", got.size(), bits.size(), set,
         differing);
  EXPECT_EQ(differing, 0);
  EXPECT_GT(set, share_of(10000));
}

}  // namespace
}  // namespace lowtide::testing
