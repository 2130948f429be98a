// One thread steps while another saves. A call that meets the other thread's is refused and tried again. In any order,
// each checkpoint holds one whole step: the parameters that the saver copied with it, and their state, belong to that
// number of steps, bit for bit. The thread sanitizer (make tsan) finds no race.
#include "support/checkpoint_case.h"
#include "support/optimizer_case.h"
#include "support/test.h"

namespace lowtide::testing {
namespace {

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
constexpr int kSteps = 60;
#else
constexpr int kSteps = 200;
#endif
constexpr int64_t kNumel = 60'000;

// An optimizer with part of its state on disk, if a directory is given, and gradients that depend on the step.
struct Run {
  Tensor p{DType::kF32, {kNumel}}, g{DType::kF32, {kNumel}};
  Optimizer optimizer;

  explicit Run(const std::string& disk) : Run(config(disk)) {}
  explicit Run(const Config& given) : optimizer(make_optimizer(given)) {
    Rng rng(7);
    p.randomize(rng), g.randomize(rng);
    optimizer.add_param(0, p.view());
  }
  static Config config(const std::string& disk) {
    Config config{.threads = 2};
    if (!disk.empty()) config.memory = {.host = 65536, .disk = disk, .chunk = 16384};
    return config;
  }
  void step(int number) {
    for (int64_t i = number % 64; i < kNumel; i += 64) g.set(i, number * 0.01 - static_cast<double>(i % 5));
    const Gradient gradient = g.gradient();
    optimizer.step({&gradient, 1});
  }
};

// Repeats a call until the other thread does not use the optimizer.
template <class Call>
int64_t insist(Call&& call) {
  for (int64_t refused = 0;; ++refused) try {
      call();
      return refused;
    } catch (const Error& error) {
      if (std::string(error.what()).find("in use by another thread") == std::string::npos) throw;
      std::this_thread::yield();
    }
}

// Leaves room for the other thread, for a random time; a thread that calls without end would shut the other out.
void pause(Rng& rng) { std::this_thread::sleep_for(std::chrono::microseconds(rng.next() % 1000)); }

// Returns the states and step counts so far, without the parameters, which the saver does not write.
std::vector<std::byte> state_of(const Run& run) { return snapshot(run.optimizer, {}); }

void save_while_stepping(const std::string& disk, const char* where) {
  const TemporaryDirectory directory;
  Run run(disk), alone(""), reader("");
  std::vector<std::vector<std::byte>> wanted{state_of(alone)};
  for (int i = 0; i < kSteps; ++i) alone.step(i), wanted.push_back(state_of(alone));

  std::atomic<int> stepped = 0;
  int64_t steps_refused = 0, saves_refused = 0;
  int saves = 0;
  Rng stepper_rng(8), saver(9);
  std::thread stepper([&] {
    for (int i = 0; i < kSteps; ++i) steps_refused += insist([&] { run.step(i); }), ++stepped, pause(stepper_rng);
  });
  while (stepped < kSteps) {
    pause(saver);
    const std::string path = directory.file("c" + std::to_string(saves++));
    saves_refused += insist([&] { run.optimizer.save(path, ""); });
  }
  stepper.join();

  std::map<int64_t, int> by_step;
  int wrong = 0;
  for (int i = 0; i < saves; ++i) {
    reader.optimizer.load(directory.file("c" + std::to_string(i)));
    const int64_t steps = reader.optimizer.steps(0);
    ++by_step[steps];
    wrong += steps < 0 || steps > kSteps || state_of(reader) != wanted[static_cast<size_t>(steps)];
  }
  EXPECT_EQ(wrong, 0);
  EXPECT_GT(by_step.size(), static_cast<size_t>(kSteps / 20)) << "saves met too few different steps";
  EXPECT_TRUE(state_of(run) == wanted.back()) << "a save changed a step";
  EXPECT_TRUE(same_bits(run.p.data.data(), alone.p.data.data(), DType::kF32, kNumel));
  figure("saves beside steps, {}: {} checkpoints of {} steps, wrong {}; {} steps and {} saves refused first", where,
         saves, by_step.size(), wrong, steps_refused, saves_refused);
}

TEST(Saves, BesideStepsHoldOneWholeStep) {
  save_while_stepping("", "RAM");
  const TemporaryDirectory disk;
  save_while_stepping(disk.file(""), "disk");
}

// A file with correct checksums and wrong floats: from another writer, or from memory that failed before the save.
TEST(Saves, FloatsThatWouldSpreadAreRefused) {
  const TemporaryDirectory directory;
  const std::string path = directory.file("c");
  const uint32_t nan = 0x7fc00000, infinity = 0x7f800000, negative = 0xbf800000;
  int refused = 0, taken = 0;
  for (const char* const state : {"dynamic8", "float8", "dynamic4", "bf16", "fp32"}) {
    Config config = Run::config("");
    config.state = state;
    config.min_quantized_numel = 0;
    lowtide::testing::Run run(config);
    run.step(1);
    run.optimizer.save(path, "");
    const Content good = load(path);
    const std::vector<std::byte> before = state_of(run);
    for (const auto& [key, bytes] : good.arrays) {
      const bool is_signed = good.description.params[key[0]].states[key[1]].is_signed;
      const std::string codec = state;
      const size_t size = key[2] || codec == "fp32" ? 4 : codec == "bf16" ? 2 : 0;
      for (const uint32_t bits : {nan, infinity, negative}) {
        Content bad = good;
        if (size)  // the last float of the array; for bf16, its upper half
          std::memcpy(bad.arrays[key].data() + bytes.size() - size, reinterpret_cast<const char*>(&bits) + 4 - size,
                      size);
        bad.save(path);
        if (size && (bits != negative || key[2] || !is_signed)) {
          expect_refusal([&] { run.optimizer.load(path); }, good.description.params[key[0]].states[key[1]].name,
                         ErrorKind::kInvalidArgument);
          EXPECT_TRUE(state_of(run) == before) << "a refused file changed state";
          ++refused;
        } else {
          run.optimizer.load(path);
          good.save(path);
          run.optimizer.load(path);
          ++taken;
        }
      }
    }
    config.nonfinite = NonFinite::kPropagate;
    lowtide::testing::Run propagating(config);
    Content bad = good;
    const auto& [key, bytes] = *good.arrays.rbegin();
    if (bytes.size() >= 4) std::memcpy(bad.arrays[key].data(), &nan, 4);
    bad.save(path);
    propagating.optimizer.load(path);
  }
  EXPECT_GT(refused, 0);
  figure("files with one wrong float: {} refused, nothing changed; {} that are codes or signed taken", refused, taken);
}

}  // namespace
}  // namespace lowtide::testing
