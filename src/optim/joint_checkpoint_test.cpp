// Claim: several optimizers that share one optimizer's parameters write its file and continue from it, or stay
// unchanged.
#include "optim/joint_checkpoint.h"

#include "optim/optimizer_impl.h"
#include "support/optimizer_case.h"
#include "support/test.h"

namespace lowtide::testing {
namespace {

constexpr int kParams = 5;
const std::vector<int> kOwner = {0, 1, 1, 0, 1};

std::string bytes_of(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

// `count` optimizers that share parameters; each has the others' as tensors without elements.
class Joint {
 public:
  explicit Joint(uint64_t seed, int count = 2, const std::string& rule = "adamw")
      : owner_(count == 1 ? std::vector<int>(kParams, 0) : kOwner) {
    Rng rng(seed);
    for (int i = 0; i < kParams; ++i) {
      params_.emplace_back(DType::kF32, std::vector<int64_t>{3 + i, 700});
      params_.back().randomize(rng);
    }
    OptimizerOptions options{.rule = rule};
    for (int n = 0; n < count; ++n) {
      Optimizer& made = made_.emplace_back(options);
      GroupOptions group{.min_quantized_numel = 0};
      made.add_group(group);
      for (size_t i = 0; i < kParams; ++i) made.add_param(0, owner_[i] == n ? params_[i].view() : none_.view());
      all_.push_back(&made);
    }
  }

  void step(uint64_t seed) {
    Rng rng(seed);
    std::vector<Tensor> grads;
    for (const Tensor& param : params_) (grads.emplace_back(DType::kF32, param.sizes)).randomize(rng);
    for (size_t n = 0; n < all_.size(); ++n) {
      std::vector<Gradient> given(kParams);
      for (size_t i = 0; i < kParams; ++i)
        if (owner_[i] == static_cast<int>(n)) given[i] = grads[i].gradient();
      all_[n]->step(given);
    }
  }

  void save(const std::string& path) { save_together(all_, owner_, path, "words"); }
  SaveHandle save_async(const std::string& path) { return save_together_async(all_, owner_, path, "words", 0); }
  std::string load(const std::string& path) { return load_together(all_, owner_, path); }
  // Values, counts and state of each parameter, from the optimizer that owns it.
  std::vector<std::byte> snapshot() const {
    std::vector<std::byte> out;
    for (size_t n = 0; n < all_.size(); ++n) {
      std::vector<const Tensor*> own;
      for (size_t i = 0; i < kParams; ++i)
        if (owner_[i] == static_cast<int>(n)) own.push_back(&params_[i]);
      const auto part = testing::snapshot(*all_[n], own);
      out.insert(out.end(), part.begin(), part.end());
    }
    return out;
  }
  void take_values(const Joint& of) {
    for (size_t i = 0; i < kParams; ++i) std::ranges::copy(of.params_[i].data, params_[i].data.begin());
  }
  std::vector<std::byte> values() const {
    std::vector<std::byte> out;
    for (const Tensor& param : params_) out.insert(out.end(), param.data.begin(), param.data.end());
    return out;
  }
  std::vector<Optimizer*>& all() { return all_; }
  const std::vector<int>& owner() const { return owner_; }

 private:
  std::vector<int> owner_;
  Tensor none_{DType::kF32, {0}};
  std::vector<Tensor> params_;
  std::deque<Optimizer> made_;
  std::vector<Optimizer*> all_;
};

TEST(JointCheckpoint, BesideStepsOfEither) {
  const TemporaryDirectory directory;
  int64_t copied = 0;
  for (int trial = 0; trial < 20; ++trial) {
    Joint two(1), plain(1);
    two.step(9), plain.step(9);
    two.save(directory.file("wanted"));
    const SaveHandle save = two.save_async(directory.file("got"));
    for (uint64_t step = 10; step < 13; ++step) two.step(step), plain.step(step);
    if (trial % 2) two.all()[0]->report();
    EXPECT_TRUE(save.wait());
    EXPECT_EQ(bytes_of(directory.file("got")), bytes_of(directory.file("wanted")));
    EXPECT_EQ(two.snapshot(), plain.snapshot());
    two.save(directory.file("later"));
    copied += save.copied_bytes();
  }
  figure("20 files of two optimizers, saved beside their steps, are those of before; {} bytes copied", copied);
}

TEST(JointCheckpoint, IsTheFileOfOneAndGoesOnInEither) {
  const TemporaryDirectory directory;
  Joint one(1, 1), two(1);
  for (uint64_t step = 10; step < 13; ++step) one.step(step), two.step(step);
  EXPECT_EQ(one.values(), two.values());
  one.all().front()->save(directory.file("one"), "words");
  two.save(directory.file("two"));
  const std::string saved = bytes_of(directory.file("two"));
  EXPECT_EQ(bytes_of(directory.file("one")), saved);
  Joint resumed(2), single(3, 1);
  EXPECT_EQ(resumed.load(directory.file("one")), "words");
  EXPECT_EQ(single.all().front()->load(directory.file("two")), "words");
  resumed.take_values(two);
  single.take_values(two);
  EXPECT_EQ(resumed.snapshot(), two.snapshot());
  for (Joint* const each : {&one, &two, &resumed, &single}) each->step(20);
  EXPECT_EQ(two.values(), one.values());
  EXPECT_EQ(resumed.values(), one.values());
  EXPECT_EQ(single.values(), one.values());
  figure("{} bytes are those of one optimizer; 2 of 2 others go on bit for bit", saved.size());
}

TEST(JointCheckpoint, TornFileChangesNothing) {
  const TemporaryDirectory directory;
  const std::string path = directory.file("c");
  Joint two(1), other(2);
  two.step(10);
  other.step(11);
  two.save(path);
  const std::string whole = bytes_of(path);
  const auto before = other.snapshot();
  int refused = 0;
  const auto load_refused = [&](const std::string& content) {
    std::ofstream(path, std::ios::binary | std::ios::trunc) << content;
    EXPECT_NE(refusal([&] { other.load(path); }), "");
    EXPECT_EQ(other.snapshot(), before);
    ++refused;
  };
  for (const size_t bytes : {size_t{0}, size_t{63}, whole.size() / 2, whole.size() - 1})
    load_refused(whole.substr(0, bytes));
  for (size_t at = 0; at < whole.size(); at += whole.size() / 20) {
    std::string changed = whole;
    changed[at] = static_cast<char>(changed[at] ^ 1);
    load_refused(changed);
  }
  std::ofstream(path, std::ios::binary | std::ios::trunc) << whole;
  other.load(path);
  EXPECT_NE(other.snapshot(), before);
  figure("{} torn files are refused, and change neither optimizer", refused);
}

TEST(JointCheckpoint, RefusesOptimizersThatDoNotMakeOne) {
  const TemporaryDirectory directory;
  const std::string path = directory.file("c");
  Joint two(1), lion(1, 2, "lion");
  two.step(10);
  two.save(path);
  const auto before = two.snapshot();
  const std::string saved = bytes_of(path);
  Optimizer few = make_optimizer({});
  Optimizer *const first = two.all()[0], *const second = two.all()[1];
  const std::pair<std::vector<Optimizer*>, std::vector<int>> wrong[] = {
      {{}, kOwner},                           // no optimizers
      {{first, &few}, kOwner},                // another number of parameters
      {{first, lion.all()[1]}, kOwner},       // another rule
      {{first, second}, {0, 1, 1, 0}},        // too few owners
      {{first, second}, {0, 1, 1, 0, 1, 0}},  // too many owners
      {{first, second}, {0, 1, 1, 0, 2}},     // no such owner
      {{first, second}, {0, 1, 1, 0, -1}},    // no such owner
  };
  for (const auto& set : wrong) {
    EXPECT_NE(refusal([&] { save_together(set.first, set.second, path, ""); }), "");
    EXPECT_NE(refusal([&] { load_together(set.first, set.second, path); }), "");
  }
  EXPECT_NE(refusal([&] { lion.load(path); }), "");
  EXPECT_EQ(two.snapshot(), before);
  EXPECT_EQ(bytes_of(path), saved);
  figure("{} wrong sets of optimizers are refused, in saving and in loading", std::size(wrong));
}

}  // namespace
}  // namespace lowtide::testing
