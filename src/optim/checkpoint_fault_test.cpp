// Claims: whatever fails, and whenever the process ends, the path holds either the whole old or the whole new
// checkpoint; and saving takes the memory of one piece, not of the state.
#include <sys/wait.h>

#include <csignal>

#include "support/checkpoint_case.h"
#include "support/faulty_env.h"
#include "support/test.h"

namespace lowtide::testing {
namespace {

enum class Holds { kOld, kNew, kOther };

Holds held(const std::string& path, const Content& older, const Content& newer) {
  try {
    const Content now = load(path);
    return same(now, older) ? Holds::kOld : same(now, newer) ? Holds::kNew : Holds::kOther;
  } catch (const Error&) {
    return Holds::kOther;
  }
}

constexpr Call kSaveCalls[] = {Call::kOpen, Call::kAllocate, Call::kPwrite, Call::kSync, Call::kRename};

TEST(CheckpointFault, AnyFailedCallLeavesTheOldOrTheNew) {
  const TemporaryDirectory directory;
  const std::string path = directory.file("c");
  const Content older = small_content(1), newer = small_content(2);
  FaultyEnv env;
  env.arm({});
  newer.save(path, kSmallPiece, env);
  std::vector<std::pair<Call, int64_t>> points;
  for (const Call call : kSaveCalls) {
    ASSERT_GT(env.calls(call), 0);
    for (int64_t n = 1; n <= env.calls(call); ++n) points.emplace_back(call, n);
  }
  const int64_t descriptors = open_descriptors();
  int runs = 0, old_count = 0, new_count = 0, wrong = 0, failed_syncs = 0, accepted_syncs = 0;
  int64_t files_left = 0, open_fds = 0;
  for (const auto& [call, nth] : points) {
    for (const int error : {EIO, ENOSPC, EINTR, EROFS, 0}) {  // 0: a short count
      for (const bool persistent : {false, true}) {
        const bool retried = call == Call::kOpen || call == Call::kPwrite || call == Call::kAllocate;
        if (error == 0 && call != Call::kPwrite) continue;
        if (error == EINTR && persistent && retried) continue;  // endless signals
        older.save(path);
        Fault fault{.call = call,
                    .nth = nth,
                    .persistent = persistent,
                    .error = error,
                    .short_ = error == 0,
                    .short_bytes = error == 0 ? 1000 : 0};
        env.arm(fault);
        bool threw = false;
        try {
          newer.save(path, kSmallPiece, env);
        } catch (const Error& failure) {
          threw = true;
          EXPECT_EQ(failure.kind(), ErrorKind::kIo);
          EXPECT_EQ(failure.os_error(), error) << failure.what();
        }
        EXPECT_GT(env.struck(), 0);
        ++runs;
        if (call == Call::kSync) {
          ++failed_syncs;
          accepted_syncs += !threw;
        }
        // Interrupted and short calls are resumed; everything else is an error.
        EXPECT_EQ(threw, error != 0 && (error != EINTR || !retried));
        const Holds holds = held(path, older, newer);
        // The directory's sync, the second of two, follows the rename.
        const bool renamed = !threw || (call == Call::kSync && nth == 2);
        wrong += holds != (renamed ? Holds::kNew : Holds::kOld);
        (holds == Holds::kOld ? old_count : new_count)++;
        files_left += static_cast<int64_t>(directory.names().size()) - 1;
        open_fds += env.open_fds();
      }
    }
  }
  EXPECT_GT(old_count, 20);
  EXPECT_GT(new_count, 5);
  EXPECT_EQ(wrong, 0);
  EXPECT_EQ(files_left, 0);
  EXPECT_EQ(open_fds, 0);
  EXPECT_EQ(open_descriptors(), descriptors);
  EXPECT_EQ(accepted_syncs, 0);
  figure(
      "failed calls: {} points, {} runs: old {}, new {}, wrong {}; temporary files left {}, descriptors left {}; "
      "accepted after a failed fsync {}/{}",
      points.size(), runs, old_count, new_count, wrong, files_left, open_fds, accepted_syncs, failed_syncs);
}

// Closes but reports a failure, like a network file system that could not write.
class FailingClose : public FaultyEnv {
 public:
  explicit FailingClose(int of_error) : error(of_error) {}
  int close(int fd) override {
    FaultyEnv::close(fd);
    return -error;
  }
  int error;
};

TEST(CheckpointFault, AFailedCloseIsAnErrorUnlessInterrupted) {
  const TemporaryDirectory directory;
  const std::string path = directory.file("c");
  const Content older = small_content(1), newer = small_content(2);
  older.save(path);
  FailingClose failing(EIO), interrupted(EINTR);
  EXPECT_THROW(newer.save(path, kSmallPiece, failing), Error);
  EXPECT_EQ(held(path, older, newer), Holds::kOld);
  newer.save(path, kSmallPiece, interrupted);
  EXPECT_EQ(held(path, older, newer), Holds::kNew);
  EXPECT_EQ(directory.names().size(), 1u);
  EXPECT_EQ(failing.open_fds() + interrupted.open_fds(), 0);
  figure("failed close: old kept 1/1; interrupted close: new in place 1/1");
}

TEST(CheckpointFault, FileSystemsWithoutSomeCallsAreServed) {
  const TemporaryDirectory directory;
  const std::string path = directory.file("c");
  const Content content = small_content(1);
  FaultyEnv env;
  int served = 0;
  for (const int error : {EOPNOTSUPP, EINVAL}) {
    env.arm({.call = Call::kAllocate, .nth = 1, .error = error});
    content.save(path, kSmallPiece, env);
    served += env.struck() == 1 && same(content, load(path));
  }
  env.arm({.call = Call::kSync, .nth = 2, .error = EINVAL});
  content.save(path, kSmallPiece, env);
  served += env.struck() == 1 && same(content, load(path));
  EXPECT_EQ(served, 3);
  figure("file systems without fallocate or without sync of directories: {}/3 served", served);
}

TEST(CheckpointFault, AKilledProcessLeavesTheOldOrTheNew) {
  const TemporaryDirectory directory;
  const std::string path = directory.file("c");
  const Content older = small_content(1), newer = small_content(2);
  FaultyEnv env;
  env.arm({});
  newer.save(path, kSmallPiece, env);
  const int64_t calls = env.calls();
  int points = 0, killed = 0, old_count = 0, new_count = 0, missing = 0, wrong = 0;
  for (int64_t nth = 1; nth <= calls; ++nth) {
    for (const bool before : {true, false}) {
      for (const bool first : {false, true}) {  // first: no old checkpoint exists
        std::filesystem::remove(path);
        if (!first) older.save(path);
        const pid_t child = ::fork();
        ASSERT_GE(child, 0);
        if (child == 0) {
          Fault fault{.nth = nth};
          (before ? fault.before : fault.after) = [] { ::kill(::getpid(), SIGKILL); };
          env.arm(fault);
          try {
            newer.save(path, kSmallPiece, env);
          } catch (...) {
          }
          ::_exit(0);
        }
        int status = 0;
        ASSERT_EQ(::waitpid(child, &status, 0), child);
        killed += WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL;
        ++points;
        if (first && !std::filesystem::exists(path)) {
          ++missing;
          continue;
        }
        const Holds holds = held(path, older, newer);
        wrong += holds == Holds::kOther || (first && holds == Holds::kOld);
        (holds == Holds::kOld ? old_count : new_count)++;
      }
    }
  }
  // Files of the killed process lie beside the path and are named after it.
  int leftovers = 0, strangers = 0;
  for (const auto& entry : std::filesystem::directory_iterator(directory.file(""))) {
    const std::string name = entry.path().filename().string();
    if (name == "c") continue;
    (name.rfind("c.tmp-", 0) == 0 ? leftovers : strangers)++;
  }
  older.save(path);
  const size_t kept = directory.names().size() - 1;
  EXPECT_EQ(kept, 0u) << "the next save removes what is nobody's";
  EXPECT_EQ(killed, points);
  EXPECT_EQ(wrong, 0);
  EXPECT_EQ(strangers, 0);
  EXPECT_GT(old_count, 20);
  EXPECT_GT(new_count, 2);
  EXPECT_GT(missing, 20);
  figure(
      "killed at {}/{} points of {} calls: old {}, new {}, none before and none after {}, wrong {}; {} files c.tmp-* "
      "left, {} after one more save, {} others",
      killed, points, calls, old_count, new_count, missing, wrong, leftovers, kept, strangers);
}

int64_t peak_resident_bytes() {
  std::ifstream status("/proc/self/status");
  for (std::string word; status >> word;) {
    int64_t kib = 0;
    if (word == "VmHWM:" && status >> kib) return kib * 1024;
  }
  return -1;
}

// How much `work`, in its own process, raises the peak of resident memory; -1 if it failed.
template <class Work>
int64_t growth_of(Work work) {
  int ends[2];
  if (::pipe(ends) != 0) return -1;
  const pid_t child = ::fork();
  if (child == 0) {
    int64_t growth = -1;
    try {
      std::ofstream("/proc/self/clear_refs") << "5";  // resets the peak to what is resident now
      const int64_t start = peak_resident_bytes();
      if (work()) growth = peak_resident_bytes() - start;
    } catch (...) {
    }
    const bool told = ::write(ends[1], &growth, sizeof growth) == sizeof growth;
    ::_exit(!told);
  }
  ::close(ends[1]);
  int64_t growth = -1;
  if (child < 0 || ::read(ends[0], &growth, sizeof growth) != sizeof growth) growth = -1;
  ::close(ends[0]);
  if (child > 0) ::waitpid(child, nullptr, 0);
  return growth;
}

TEST(CheckpointMemory, SavingAndLoadingTakeLessThanTwoPieces) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "a sanitizer's own memory hides that of the code";
#endif
  const TemporaryDirectory directory;
  const std::string path = directory.file("c");
  Checkpoint description;
  description.rule = "adamw";
  constexpr int64_t kRows = 100, kRow = 1 << 20;
  description.params = {param_of("w", {kRows, kRow}, 2, 1, 256)};
  const auto value = [](const StatePart& part, int64_t i) {
    return static_cast<std::byte>(i * 31 + (i >> 20) + static_cast<int64_t>(part.state));
  };
  const int64_t save = growth_of([&] {
    save_checkpoint(system_env(), path, description,
                    [&](const StatePart& part, int64_t offset, std::byte* to, int64_t bytes) {
                      for (int64_t i = 0; i < bytes; ++i) to[i] = value(part, offset + i);
                    });
    return true;
  });
  const int64_t loading = growth_of([&] {
    int64_t wrong = 0, total = 0;
    const CheckpointFile file(system_env(), path);
    file.load([&](const StatePart& part, int64_t offset, const std::byte* from, int64_t bytes) {
      total += bytes;
      for (int64_t i = 0; i < bytes; ++i) wrong += from[i] != value(part, offset + i);
    });
    return wrong == 0 && total == 2 * (kRows * kRow + kRows * (kRow / 256) * 4);
  });
  constexpr int64_t kLimit = 2 * checkpoint::kPieceBytes;
  EXPECT_GE(save, 0);
  EXPECT_GE(loading, 0);
  EXPECT_LE(save, kLimit);
  EXPECT_LE(loading, kLimit);
  figure("peak growth of resident memory with {} MB of state: save {} MB, load {} MB, limit {} MB",
         std::filesystem::file_size(path) / 1000000, static_cast<double>(save) / 1e6,
         static_cast<double>(loading) / 1e6, kLimit / 1e6);
}

// Headers that would grow many times if parsed into a document, with correct checksums. The reader holds the file once;
// the parser's message copies an unclosed string a few more times.
TEST(CheckpointMemory, AHostileHeaderTakesBoundedMemory) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "a sanitizer's own memory hides that of the code";
#endif
  constexpr size_t kBytes = 16 << 20;
  const auto repeated = [](const std::string& start, const std::string& unit) {
    std::string text = start;
    while (text.size() < kBytes) text += unit;
    return text;
  };
  const std::string param = R"({"metadata":"","params":[{"block":0,"codec":"","group":0,"name":"a","sizes":[)";
  const std::string headers[] = {
      repeated(param, "[],"),
      repeated(param, "0,"),
      repeated(param + R"(],"states":[)", "{},"),
      repeated(R"({"metadata":"","params":[)", "{},"),
      repeated(R"({"metadata":"","params":[)", "0,"),
      repeated(R"({"metadata":"","params":[)", "["),
      repeated(R"({"metadata":[)", "0,"),
      repeated(R"({"metadata":")", "x"),
      repeated("", R"({"a":)"),
      repeated(R"({"metadata":"","params":[{)", R"("a":0,)"),
      repeated("", "[],"),
  };
  const TemporaryDirectory directory;
  const std::string path = directory.file("c");
  int bounded = 0;
  double worst = 0, string = 0;
  for (const std::string& header : headers) {
    write_file(path, forge(header, "", {}));
    const auto size = static_cast<int64_t>(std::filesystem::file_size(path));
    const int64_t growth = growth_of([&] {
      try {
        CheckpointFile file(system_env(), path);
        return false;
      } catch (const Error& error) {
        return error.kind() == ErrorKind::kInvalidArgument;
      }
    });
    const bool ok = growth >= 0 && growth <= 8 * size + (8 << 20);
    EXPECT_TRUE(ok) << header.substr(0, 100) << ": " << growth << " bytes";
    bounded += ok;
    const bool unclosed = header.ends_with('x');
    if (unclosed)
      string = static_cast<double>(growth) / static_cast<double>(size);
    else
      worst = std::max(worst, static_cast<double>(growth) / static_cast<double>(size));
  }
  EXPECT_EQ(bounded, static_cast<int>(std::size(headers)));
  figure(
      "hostile headers of 16 MiB refused in bounded memory: {}/{}; times the file: {} for a string that is not closed, "
      "{} at most for the others",
      bounded, std::size(headers), string, worst);
}

}  // namespace
}  // namespace lowtide::testing
