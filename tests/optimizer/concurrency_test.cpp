// One optimizer refuses a second thread, two optimizers share the machine, and a forked child can step.
#include <sys/wait.h>
#include <unistd.h>

#include "support/optimizer_case.h"
#include "support/test.h"

namespace lowtide::testing {
namespace {

constexpr int64_t kNumel = 400'000;

Config with_threads(int threads) {
  Config config{.threads = threads};
  return config;
}

struct Session {
  Tensor p{DType::kF32, {kNumel}}, g{DType::kF32, {kNumel}};
  Optimizer optimizer;

  explicit Session(uint64_t seed, int threads) : optimizer(make_optimizer(with_threads(threads))) {
    Rng rng(seed);
    p.randomize(rng), g.randomize(rng);
    optimizer.add_param(0, p.view());
  }
  void step() { take_step(optimizer, g); }
};

TEST(Concurrency, ASecondThreadInOneOptimizerIsRefused) {
  Session run(100, 2), alone(100, 1);
  std::atomic<int64_t> done{0}, refused{0};
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  const auto work = [&] {
    while ((refused < 20 || done < 20) && std::chrono::steady_clock::now() < end) {
      try {
        run.step();
        ++done;
      } catch (const Error& error) {
        EXPECT_NE(std::string(error.what()).find("in use by another thread"), std::string::npos) << error.what();
        ++refused;
        std::this_thread::yield();
      }
    }
  };
  std::thread other(work);
  work();
  other.join();
  figure("{} steps taken, {} refused", done, refused);
  EXPECT_GT(refused, 0);
  EXPECT_EQ(run.optimizer.steps(0), done);
  for (int64_t i = 0; i < done; ++i) alone.step();
  EXPECT_TRUE(same_bits(run.p.data.data(), alone.p.data.data(), DType::kF32, kNumel))
      << "a refused call changed something";
}

TEST(Concurrency, TwoOptimizersInTwoThreadsGiveTheirOwnBits) {
  Session a(101, 2), b(102, 2), wanted_a(101, 1), wanted_b(102, 1);
  const auto work = [](Session& run) {
    for (int i = 0; i < 50; ++i) run.step();
  };
  std::thread other(work, std::ref(a));
  work(b);
  other.join();
  work(wanted_a), work(wanted_b);
  EXPECT_TRUE(snapshot(a.optimizer, {&a.p}) == snapshot(wanted_a.optimizer, {&wanted_a.p}));
  EXPECT_TRUE(snapshot(b.optimizer, {&b.p}) == snapshot(wanted_b.optimizer, {&wanted_b.p}));
  EXPECT_FALSE(snapshot(a.optimizer, {&a.p}) == snapshot(b.optimizer, {&b.p})) << "control";
}

TEST(Concurrency, AForkedChildCanStep) {
#if defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "the thread sanitizer does not follow a fork of a process with threads";
#endif
  Session run(103, 2);
  run.step();  // starts the pool's threads, which the child will not have
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    alarm(60);  // ends a child that waits for threads that it does not have
    Session wanted(103, 1);
    for (int i = 0; i < 3; ++i) wanted.step();
    run.step(), run.step();
    _exit(same_bits(run.p.data.data(), wanted.p.data.data(), DType::kF32, kNumel) ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status)) << "killed by signal " << WTERMSIG(status);
  EXPECT_EQ(WEXITSTATUS(status), 0) << "the child's bits are not those of one process";
  run.step();  // the parent goes on
  EXPECT_EQ(run.optimizer.steps(0), 2);
}

}  // namespace
}  // namespace lowtide::testing
