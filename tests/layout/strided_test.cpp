// A strided view steps exactly as a contiguous copy of it, and what lies between its elements is left alone; views with
// two elements at one address are refused.
#include "support/optimizer_case.h"
#include "support/test.h"

namespace lowtide::testing {
namespace {

struct View {
  std::vector<int64_t> sizes, strides;
  int64_t offset = 0, extent = 1;  // extent: elements from the first to the last, inclusive
};

// Calls visit(address) for every element in row-major order.
template <class Fn>
void for_each_element(const View& view, Fn&& visit) {
  int64_t numel = 1;
  for (const int64_t size : view.sizes) numel *= size;
  for (int64_t i = 0; i < numel; ++i) {
    int64_t rest = i, at = view.offset;
    for (size_t d = view.sizes.size(); d-- > 0;) {
      at += rest % view.sizes[d] * view.strides[d];
      rest /= view.sizes[d];
    }
    visit(at);
  }
}

// A random permutation of dims in memory, each padded at random, from a random start.
View random_view(Rng& rng) {
  View view;
  const size_t dims = static_cast<size_t>(rng.between(1, 4));
  for (size_t d = 0; d < dims; ++d) view.sizes.push_back(rng.chance(0.1) ? 1 : rng.between(2, dims > 2 ? 12 : 90));
  if (rng.chance(0.05)) view.sizes[0] = 0;
  view.strides.resize(dims);
  int64_t stride = rng.chance(0.3) ? rng.between(2, 3) : 1;
  for (const size_t d : rng.permutation(dims)) {
    view.strides[d] = stride;
    stride *= std::max<int64_t>(1, view.sizes[d]) + (rng.chance(0.3) ? rng.between(1, 5) : 0);
  }
  view.offset = rng.below(70);
  for (size_t d = 0; d < dims; ++d) view.extent += std::max<int64_t>(0, view.sizes[d] - 1) * view.strides[d];
  return view;
}

// Any strides at all, zeros and overlaps included.
View wild_view(Rng& rng, const std::vector<int64_t>& sizes) {
  View view;
  view.sizes = sizes;
  for (const int64_t size : sizes) {
    view.strides.push_back(rng.below(20));
    view.extent += std::max<int64_t>(0, size - 1) * view.strides.back();
  }
  return view;
}

struct Tally {
  int64_t correct = 0, refused = 0, wrong = 0, strided = 0;
};

void compare(const View& param, const View& grad, Rng& rng, Tally& tally) {
  const DType p_dtype = kDTypes[rng.below(3)], g_dtype = kDTypes[rng.below(3)];
  Config setup;
  setup.hyper.momentum = 0.9;
  const std::vector<std::string> rules = rule_names();
  setup.rule = rules[static_cast<size_t>(rng.below(static_cast<int64_t>(rules.size())))];
  const std::vector<std::string> codecs = codec_names_of(setup.rule, setup.hyper);
  setup.state = codecs[static_cast<size_t>(rng.below(static_cast<int64_t>(codecs.size())))];
  setup.threads = static_cast<int>(rng.between(1, 2));

  Tensor p_memory(p_dtype, {param.offset + param.extent}), g_memory(g_dtype, {grad.offset + grad.extent});
  p_memory.randomize(rng);
  g_memory.randomize(rng);
  Tensor p_copy(p_dtype, param.sizes), g_copy(g_dtype, param.sizes);
  int64_t at = 0;
  for_each_element(param, [&](int64_t i) { p_copy.set(at++, p_memory.get(i)); });
  at = 0;
  for_each_element(grad, [&](int64_t i) { g_copy.set(at++, g_memory.get(i)); });

  Optimizer strided = make_optimizer(setup), contiguous = make_optimizer(setup);
  const int64_t size = dtype_bytes(p_dtype);
  std::vector<int64_t> addresses;
  for_each_element(param, [&](int64_t i) { addresses.push_back(i); });
  std::vector<int64_t> sorted = addresses;
  std::sort(sorted.begin(), sorted.end());
  const bool shared = std::adjacent_find(sorted.begin(), sorted.end()) != sorted.end();
  const TensorView view{p_memory.data.data() + param.offset * size, p_dtype, param.sizes, param.strides};
  try {
    strided.add_param(0, view);
  } catch (const Error& error) {
    // Refusing may be more careful than needed, accepting may not.
    EXPECT_EQ(static_cast<int>(error.kind()), static_cast<int>(ErrorKind::kInvalidArgument));
    ++tally.refused;
    return;
  }
  ASSERT_FALSE(shared) << "a parameter with two elements at one address was accepted";
  contiguous.add_param(0, p_copy.view());
  std::vector<std::byte> wanted = p_memory.data;
  const Gradient g{g_memory.data.data() + grad.offset * dtype_bytes(g_dtype), g_dtype, grad.strides.data()};
  Gradient g_contiguous = g_copy.gradient();
  if (!g_contiguous.data) g_contiguous.data = g.data;  // of no elements, but a gradient: the step counts
  for (int step = 0; step < 2; ++step) {
    ASSERT_TRUE(strided.step({&g, 1}).applied);
    ASSERT_TRUE(contiguous.step({&g_contiguous, 1}).applied);
  }
  // The whole memory: stepped elements as in the copy, everything between them as it was.
  for (size_t i = 0; i < addresses.size(); ++i)
    std::memcpy(wanted.data() + addresses[i] * size, p_copy.data.data() + static_cast<int64_t>(i) * size,
                static_cast<size_t>(size));
  const auto same = same_bits(p_memory.data.data(), wanted.data(), p_dtype, p_memory.numel);
  const bool states = snapshot(strided, {}) == snapshot(contiguous, {});
  EXPECT_TRUE(same) << setup.rule << " " << setup.state;
  EXPECT_TRUE(states) << setup.rule << " " << setup.state << ": states differ";
  ++(same && states ? tally.correct : tally.wrong);
  tally.strided += param.extent != p_copy.numel;
}

TEST(Strided, StepsAsAContiguousCopyDoes) {
  auto rng = seeded("strided", 50);
  Tally tally;
  for (int n = 0; n < 3000; ++n) {
    const View param = random_view(rng);
    View grad = param;
    const int64_t kind = rng.below(4);
    if (kind == 1) {  // contiguous, by explicit strides
      int64_t stride = 1;
      for (size_t d = grad.sizes.size(); d-- > 0;)
        grad.strides[d] = stride, stride *= std::max<int64_t>(1, grad.sizes[d]);
      grad.offset = 0, grad.extent = std::max<int64_t>(1, stride);
    } else if (kind == 2) {  // expanded: one value for everything, or along one dim
      grad = wild_view(rng, param.sizes);
      for (int64_t& stride : grad.strides) stride = rng.chance(0.5) ? 0 : stride;
    } else if (kind == 3) {
      grad = wild_view(rng, param.sizes);
    }
    compare(param, grad, rng, tally);
  }
  figure("{} correct ({} with gaps), {} refused, wrong={}", tally.correct, tally.strided, tally.refused, tally.wrong);
  EXPECT_EQ(tally.wrong, 0);
  EXPECT_EQ(tally.refused, 0) << "every view here has its elements apart";
  EXPECT_EQ(tally.correct, 3000);
  EXPECT_GT(tally.strided, 1000);
}

TEST(Strided, RefusesParametersThatShareAddresses) {
  auto rng = seeded("sharing", 51);
  Tally tally;
  for (int n = 0; n < 3000; ++n) {
    std::vector<int64_t> sizes;
    for (int64_t d = rng.between(1, 3); d > 0; --d) sizes.push_back(rng.between(1, 9));
    const View param = wild_view(rng, sizes);
    compare(param, wild_view(rng, sizes), rng, tally);
  }
  figure("{} correct, {} refused, wrong={}", tally.correct, tally.refused, tally.wrong);
  EXPECT_EQ(tally.wrong, 0);
  EXPECT_EQ(tally.correct + tally.refused, 3000);
  EXPECT_GT(tally.refused, 500);
  EXPECT_GT(tally.correct, 500);
  float x[4] = {};
  Optimizer optimizer = make_optimizer({});
  expect_refusal([&] { optimizer.add_param(0, {x, DType::kF32, {2, 4}, {0, 1}}); }, "share one address");
}

// Two parameters with memory in common (tied weights) are stepped one after another, in order, as two optimizers would.
TEST(Strided, StepsOverlappingParametersInOrder) {
  auto rng = seeded("overlap", 52);
  int64_t compared = 0;
  const std::vector<std::string> names = rule_names(), targets = cpu_targets();
  for (int64_t i = 0; i < std::ssize(names); ++i)
    for (int64_t j = 0; j < std::ssize(targets); ++j) {
      if (!in_share(i, j, std::ssize(targets))) continue;
      const std::string &rule = names[static_cast<size_t>(i)], &target = targets[static_cast<size_t>(j)];
      Config setup;
      setup.rule = rule, setup.target = target, setup.hyper.momentum = 0.9, setup.hyper.lr = 0.1, setup.threads = 2;
      setup.rounding = "nearest";
      constexpr int64_t kTotal = 300'000, kShared = 200'000;  // [0, shared) and [total - shared, total) overlap
      Tensor together(DType::kF32, {kTotal});
      together.randomize(rng);
      Tensor apart = together, reversed = together;
      Tensor g(DType::kBF16, {kShared}), h(DType::kBF16, {kShared});
      g.randomize(rng), h.randomize(rng);
      const auto part = [&](Tensor& t, int64_t first) {
        return TensorView{t.data.data() + first * 4, DType::kF32, {kShared}, {}};
      };
      Optimizer one = make_optimizer(setup), first = make_optimizer(setup), second = make_optimizer(setup);
      Optimizer late = make_optimizer(setup), early = make_optimizer(setup);
      late.add_param(0, part(reversed, 0));
      early.add_param(0, part(reversed, kTotal - kShared));
      one.add_param(0, part(together, 0));
      one.add_param(0, part(together, kTotal - kShared));
      first.add_param(0, part(apart, 0));
      second.add_param(0, part(apart, kTotal - kShared));
      const Gradient grads[] = {g.gradient(), h.gradient()};
      for (int step = 0; step < 3; ++step) {
        one.step(grads);
        first.step({grads, 1});
        second.step({grads + 1, 1});
        early.step({grads + 1, 1});
        late.step({grads, 1});
      }
      // Control: the other order gives other bits, wherever p + a + b is rounded in between.
      EXPECT_FALSE(same_bits(reversed.data.data(), apart.data.data(), DType::kF32, kTotal)) << rule;
      EXPECT_TRUE(same_bits(together.data.data(), apart.data.data(), DType::kF32, kTotal)) << rule << " " << target;
      compared += kTotal;
    }
  figure("{} elements equal to stepping one after another", compared);
}

}  // namespace
}  // namespace lowtide::testing
