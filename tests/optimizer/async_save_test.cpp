// Claims about saves beside steps: the file equals that of a synchronous save at the same step, bit for bit, whatever
// follows the call; steps are the same as without the save; copies stay within their limit; a failure leaves the old
// file, is reported when asked for, and stops no step.
#include <sys/wait.h>
#include <unistd.h>

#include "optim/optimizer_impl.h"
#include "support/async_save_case.h"
#include "support/device_twins.h"
#include "support/test.h"

namespace lowtide::testing {
namespace {

constexpr int64_t kPage = 4096, kPiece = int64_t{4} << 20;
// Buffer briefly maps this much more, to align large memory for huge pages, and touches none of it. Two threads do.
constexpr int64_t kAlignment = 2 * (int64_t{2} << 20);

// An optimizer and a twin that never saves, with equal parameters and gradients.
class Pair {
 public:
  Pair(Env& env, Rng& rng, const Config& setup) : rng_(rng) {
    for (Side& side : sides_) {
      OptimizerOptions options{.rule = setup.rule, .threads = setup.threads, .memory = setup.memory};
      side.optimizer.emplace(OptimizerEnv::make(options, env));
      GroupOptions group{.hyper = setup.hyper,
                         .state = setup.state,
                         .min_quantized_numel = setup.min_quantized_numel,
                         .rounding = setup.rounding,
                         .master = setup.master};
      side.optimizer->add_group(group);
    }
  }
  void add(DType dtype, const std::vector<int64_t>& sizes) {
    Tensor param(dtype, sizes);
    param.randomize(rng_);
    for (Side& side : sides_) {
      side.params.push_back(param);
      side.optimizer->add_param(0, side.params.back().view());
    }
  }
  void step(double share = 1) {
    std::vector<Tensor> tensors;
    std::vector<Gradient> grads;
    for (const Tensor& param : sides_[0].params) tensors.emplace_back(param.dtype, param.sizes).randomize(rng_);
    for (const Tensor& tensor : tensors) grads.push_back(rng_.chance(share) ? tensor.gradient() : Gradient{});
    for (Side& side : sides_)
      if (side.optimizer) side.optimizer->step(grads);
  }
  Optimizer& optimizer() { return *sides_[0].optimizer; }
  Optimizer& twin() { return *sides_[1].optimizer; }
  void destroy() { sides_[0].optimizer.reset(); }
  bool same() const { return image(sides_[0]) == image(sides_[1]); }

 private:
  struct Side {
    std::deque<Tensor> params;
    std::optional<Optimizer> optimizer;
  };
  static std::vector<std::byte> image(const Side& side) {
    std::vector<const Tensor*> params;
    for (const Tensor& param : side.params) params.push_back(&param);
    return snapshot(*side.optimizer, params);
  }

  Rng& rng_;
  Side sides_[2];
};

enum class Tier { kRam, kRamChunks, kDisk };

Config random_config(Rng& rng, Tier tier, const std::string& disk) {
  Config setup = random_setup(rng);
  setup.threads = static_cast<int>(rng.between(1, 2));
  if (tier != Tier::kRam) setup.memory = {.host = rng.between(12, 40) * kPage, .disk = disk};
  if (tier == Tier::kRamChunks) setup.memory.host = rng.between(40, 400) * kPage;
  if (tier != Tier::kRam) setup.memory.chunk = rng.between(1, 3) * kPage;
  return setup;
}

TEST(AsyncSave, FilesAreThoseOfASynchronousSave) {
  Rng rng = seeded("saves beside steps", 241);
  const int cases = share_of(600);
  int64_t saves = 0, differing = 0, bytes = 0, copied = 0, steps = 0, while_saving = 0, destroyed = 0, refused = 0;
  int by_tier[3] = {};
  for (int trial = 0; saves < cases; ++trial) {
    const TemporaryDirectory files, disk;
    const auto tier = static_cast<Tier>(trial % 3);
    SlowEnv env;
    env.microseconds = static_cast<int>(rng.between(0, 1) * rng.between(50, 400));
    Pair pair(env, rng, random_config(rng, tier, disk.path()));
    for (int64_t n = rng.between(1, 6); n > 0; --n)
      pair.add(pick(rng, std::vector{DType::kF32, DType::kBF16, DType::kF16}), random_sizes(rng));
    try {
      for (int64_t n = rng.between(0, 3); n > 0; --n) pair.step(0.8);
    } catch (const Error& error) {  // the budget holds no ring
      ASSERT_EQ(error.kind(), ErrorKind::kInvalidArgument) << error.what();
      ++refused;
      continue;
    }
    bool gone = false;
    for (int64_t n = rng.between(1, 3); n > 0 && !gone; --n) {
      const std::string wanted = files.file("sync"), got = files.file("async"), text = std::to_string(trial);
      const int delay = env.microseconds.exchange(0);
      pair.twin().save(wanted, text);
      env.microseconds = delay;
      const int64_t copies = rng.chance(0.3) ? -1 : rng.between(0, 8) * kPage;
      const SaveHandle save = pair.optimizer().save_async(got, text, copies);
      for (int64_t k = rng.between(0, 4); k > 0; --k) {
        while_saving += !save.done();
        if (rng.chance(0.1)) pair.optimizer().set_hyper(0, pair.twin().hyper(0));
        if (rng.chance(0.1)) pair.optimizer().report();
        if (rng.chance(0.1)) {
          EXPECT_TRUE(pair.same());
        }
        if (rng.chance(0.1) && tier != Tier::kRam) pair.optimizer().offload();
        if (rng.chance(0.1))
          for (int64_t i = 0; i < pair.optimizer().param_count(); ++i)
            for (const StateView& view : pair.optimizer().state(i))
              if (std::string(view.name) == "exp_avg" && view.numel > 0) {
                std::vector<float> values(static_cast<size_t>(view.numel), 0.5f);
                pair.optimizer().import_state(i, 0, values.data());
                pair.twin().import_state(i, 0, values.data());
              }
        pair.step(0.8);
        ++steps;
      }
      if (rng.chance(0.1)) {
        pair.destroy();
        EXPECT_TRUE(save.done());
        gone = true, ++destroyed;
      }
      EXPECT_TRUE(save.wait());
      const std::string a = read_file(wanted), b = read_file(got);
      EXPECT_FALSE(a.empty());
      differing += a != b;
      bytes += static_cast<int64_t>(a.size());
      copied += save.copied_bytes();
      ++saves, ++by_tier[trial % 3];
    }
    EXPECT_TRUE(gone || pair.same()) << "a save changed a step";
    EXPECT_EQ(files.names().size(), 2u) << "a temporary file was left";
  }
  EXPECT_EQ(differing, 0);
  EXPECT_GT(copied, 0) << "no step met state that was not written";
  EXPECT_LT(refused, saves);
  figure(
      "{} saves beside steps (RAM {}, RAM by chunks {}, disk {}; {} optimizers destroyed meanwhile): {} files differ "
      "from a synchronous save's, of {} bytes; {} steps, {} begun before the file was written, {} bytes copied; {} "
      "budgets refused",
      saves, by_tier[0], by_tier[1], by_tier[2], destroyed, differing, bytes, steps, while_saving, copied, refused);
}

// Arrays take several pieces of the file, and chunks cut them anywhere; the Env measures mapped memory.
TEST(AsyncSave, CopiesStayWithinTheirLimit) {
  Rng rng = seeded("memory of saves", 242);
  int64_t above = 0, saves = 0, differing = 0;
  double most = 0;
  for (const bool on_disk : {false, true})
    for (const int64_t copy_bytes : {int64_t{0}, int64_t{6} << 20, int64_t{1} << 40}) {
      const TemporaryDirectory files, disk;
      SlowEnv env;
      Config setup{.state = "fp32"};
      const int64_t chunk = int64_t{5} << 20;
      if (on_disk) setup.memory = {.host = int64_t{24} << 20, .disk = disk.path(), .chunk = chunk};
      Pair pair(env, rng, setup);
      pair.add(DType::kF32, {3000, 1001});
      pair.add(DType::kF32, {700'001});
      pair.add(DType::kF32, {5000});
      pair.step();
      pair.twin().save(files.file("sync"));
      const int64_t state = pair.optimizer().report().state_bytes;
      // Counted without the ring of slots, which this step leaves behind.
      pair.step();
      pair.twin().save(files.file("sync"));
      const int64_t before = env.mapped_bytes();
      env.take_most_mapped();
      env.microseconds = 30'000;
      const SaveHandle save = pair.optimizer().save_async(files.file("async"), "", copy_bytes);
      for (int k = 0; k < 2; ++k) pair.step();
      save.wait();
      const int64_t extra = env.take_most_mapped() - before;
      const int64_t part = on_disk ? chunk : kPiece;
      const int64_t bound =
          std::max(std::min(copy_bytes, state + 64 * kPage), part) + std::max(part, kPiece) + kAlignment;
      above += extra > bound;
      EXPECT_LE(extra, bound);
      EXPECT_LE(save.most_kept_bytes(), std::max(copy_bytes, part));
      most = std::max(most, static_cast<double>(extra) / static_cast<double>(bound));
      differing += read_file(files.file("sync")) != read_file(files.file("async"));
      ++saves;
      figure(
          "{}, copy_bytes {}: state {}, mapped beside at most {}, bound max(copy_bytes, {}) + {} + {} = {}, copied {}",
          on_disk ? "disk" : "RAM", copy_bytes, state, extra, part, std::max(part, kPiece), kAlignment, bound,
          save.copied_bytes());
    }
  EXPECT_EQ(differing, 0);
  figure("{} saves: above the bound {}, most {} of it, files that differ {}", saves, above, most, differing);
}

}  // namespace
}  // namespace lowtide::testing
