// A disk wears by the bytes written to it. report().written_bytes counts exactly the bytes that reach the file, call by
// call, and a step writes at most its streaming state, once.
#include "optim/optimizer_impl.h"
#include "support/optimizer_case.h"
#include "support/test.h"

namespace lowtide::testing {
namespace {

// Counts the bytes written to files.
class CountingEnv final : public Env {
 public:
  int64_t pwrite(int fd, const void* from, int64_t bytes, int64_t offset) override {
    const int64_t done = Env::pwrite(fd, from, bytes, offset);
    if (done > 0) written_ += done;
    return done;
  }
  bool allows_io_uring() const override { return false; }
  int64_t written() const { return written_; }

 private:
  std::atomic<int64_t> written_ = 0;
};

constexpr int64_t kNumel = 3 << 20, kChunk = 256 << 10, kRam = 2 << 20;

TEST(Wear, WrittenBytesAreWhatTheFileTakes) {
  const int steps = std::max(2, share_of(6));
  int64_t reported = 0, taken = 0;
  double most = 0, least_steps = 1e300;
  for (const std::string& rule : {std::string("adamw"), std::string("lion"), std::string("lamb")})
    for (const std::string& state : {std::string("dynamic8"), std::string("bf16"), std::string("fp32")}) {
      const TemporaryDirectory directory;
      CountingEnv env;
      OptimizerOptions options{
          .rule = rule, .threads = 1, .memory = {.host = kRam, .disk = directory.file(""), .chunk = kChunk}};
      Optimizer optimizer = OptimizerEnv::make(options, env);
      GroupOptions group{.hyper = default_hyper(rule), .state = state};
      optimizer.add_group(group);
      Tensor p(DType::kF32, {kNumel}), g(DType::kF32, {kNumel});
      Rng rng(3);
      g.randomize(rng);
      optimizer.add_param(0, p.view());
      const Gradient gradient = g.gradient();
      optimizer.step({&gradient, 1});  // creates the state
      const int64_t before = optimizer.report().written_bytes, before_taken = env.written();
      for (int step = 0; step < steps; ++step) optimizer.step({&gradient, 1});
      const auto report = optimizer.report();
      const int64_t by_report = report.written_bytes - before, by_file = env.written() - before_taken;
      EXPECT_EQ(by_report, by_file) << rule << " " << state;
      reported += by_report, taken += by_file;
      // Each record of the file once, and no other byte.
      const double amplification = static_cast<double>(by_file) / steps / static_cast<double>(report.disk_bytes);
      most = std::max(most, amplification);
      const double a_parameter = static_cast<double>(by_file) / steps / kNumel;
      if (rule == "adamw") least_steps = std::min(least_steps, 600e12 / (a_parameter * 7e9));
      figure("{} {} {} bytes written a step and parameter, {} times what is on disk", rule, state, a_parameter,
             amplification);
    }
  EXPECT_GT(taken, 0);
  EXPECT_LE(most, 1.0);
  figure(
      "wear: reported {}, taken by files {} bytes; write amplification at most {}; 600 TB are {} steps of AdamW on 7e9 "
      "parameters, fp32 state",
      reported, taken, most, least_steps);
}

}  // namespace
}  // namespace lowtide::testing
