// Tests that whichever call fails, a transfer either moves all its bytes or throws; it never moves fewer in silence.
// After an error the file still works, no descriptor stays open, and nothing is left in the directory.
#include <fcntl.h>

#include "memory/scratch_file.h"
#include "support/faulty_env.h"
#include "support/scratch_support.h"
#include "support/test.h"

namespace lowtide::testing {
namespace {

constexpr int64_t kPage = ScratchFile::kAlignment;
constexpr int64_t kBytes = 12 * kPage;
const ScratchFile::Options kDirect{.direct = true, .io_uring = true, .depth = 3, .request_bytes = 2 * kPage};
const ScratchFile::Options kBuffered{.direct = false, .io_uring = true, .depth = 3, .request_bytes = 2 * kPage};

enum class Must { kSucceed, kFail };

struct Spoil {
  const char* name;
  Fault fault;  // without call and nth
  int error;    // the errno that a failure must report; 0 for any
};

std::vector<Spoil> spoils() {
  std::vector<Spoil> all;
  for (const bool persistent : {false, true}) {
    all.push_back({"EIO", {.persistent = persistent, .error = EIO}, EIO});
    all.push_back({"ENOSPC", {.persistent = persistent, .error = ENOSPC}, ENOSPC});
    all.push_back({"EINTR", {.persistent = persistent, .error = EINTR}, EINTR});
    all.push_back({"EAGAIN", {.persistent = persistent, .error = EAGAIN}, EAGAIN});
    all.push_back({"ECANCELED", {.persistent = persistent, .error = ECANCELED}, ECANCELED});  // from io_uring
    all.push_back({"half", {.persistent = persistent, .short_ = true}, 0});
    for (const int64_t bytes : {int64_t{persistent ? 500 : 1}, int64_t{511}, kPage, kPage + 512}) {
      all.push_back({"short", {.persistent = persistent, .short_ = true, .short_bytes = bytes}, 0});
    }
  }
  return all;
}

// If a fault happens once, everything that can be retried or resumed succeeds. If it is persistent, an errno makes the
// transfer fail, and short transfers go on as long as each makes progress, which with O_DIRECT takes a whole page.
Must must(const Fault& fault, bool direct) {
  const bool retried = fault.error == EINTR || fault.error == EAGAIN || fault.error == ECANCELED;
  if (fault.error) return retried && !fault.persistent ? Must::kSucceed : Must::kFail;
  if (!fault.persistent || !direct) return Must::kSucceed;
  return fault.short_bytes >= kPage ? Must::kSucceed : Must::kFail;
}

struct Outcome {
  int64_t points = 0, failures = 0, successes = 0;
};

void spoil_transfers(const std::string& base, const ScratchFile::Options& options, Call call, int64_t& grid,
                     Outcome* out) {
  const TemporaryDirectory dir(base);
  Rng rng(31);
  const int64_t before = open_descriptors();
  FaultyEnv env;
  int64_t number = 0;
  for (const Spoil& spoil : spoils()) {
    // Every share runs the first three faults, of which two fail and one is retried.
    if (number++ > 2 && !in_share(grid++)) continue;
    for (int n = 1;; n += spoil.fault.persistent ? 3 : 1) {  // persistent faults wait until the file gives up
      SCOPED_TRACE(std::string(spoil.name) + " at call " + std::to_string(n));
      Memory expected(kBytes), memory(kBytes);
      expected.fill(rng);
      ScratchFile file(env, dir.path(), kBytes, options);
      if (call == Call::kPread) file.wait(file.write(0, expected.at(0), kBytes));
      Fault fault = spoil.fault;
      fault.call = call;
      fault.nth = n;
      env.arm(fault);
      const auto error = error_of([&] {
        file.wait(call == Call::kPwrite ? file.write(0, expected.at(0), kBytes) : file.read(0, memory.at(0), kBytes));
      });
      const bool struck = env.struck() > 0;
      env.disarm();
      if (!struck) {
        ASSERT_FALSE(error);
        ASSERT_GT(n, 6);
        break;
      }
      ++out->points;
      const Must wanted = must(fault, file.direct());
      EXPECT_EQ(!error, wanted == Must::kSucceed) << (error ? error->what() : "no error");
      if (error) {
        ++out->failures;
        EXPECT_EQ(static_cast<int>(error->kind()), static_cast<int>(ErrorKind::kIo));
        EXPECT_TRUE(!spoil.error || error->os_error() == spoil.error) << error->what();
        EXPECT_NE(std::string(error->what()).find(dir.path()), std::string::npos) << error->what();
      } else {
        ++out->successes;
      }
      if (!error && call == Call::kPread) {
        ASSERT_EQ(std::memcmp(memory.at(0), expected.at(0), kBytes), 0);
      }
      // The file still works, and after a failed write the same write succeeds.
      if (error && call == Call::kPwrite) file.wait(file.write(0, expected.at(0), kBytes));
      file.wait(file.read(0, memory.at(0), kBytes));
      ASSERT_EQ(std::memcmp(memory.at(0), expected.at(0), kBytes), 0);
    }
    EXPECT_EQ(env.open_fds(), 0);
  }
  EXPECT_EQ(open_descriptors(), before);
  EXPECT_EQ(dir.names().size(), 0u);
}

TEST(ScratchFaults, TransfersMoveEverythingOrThrow) {
  int64_t grid = 0;
  for (const char* base : {"/tmp", "/dev/shm"}) {
    for (const auto& options : {kDirect, kBuffered}) {
      for (const Call call : {Call::kPread, Call::kPwrite}) {
        Outcome outcome;
        spoil_transfers(base, options, call, grid, &outcome);
        EXPECT_GT(outcome.failures, 0);
        EXPECT_GT(outcome.successes, 0);
        figure("{}, {}, {}: points {}, errors {}, resumed or retried {}, bytes wrong 0, descriptors left 0", base,
               options.direct ? "direct" : "buffered", call == Call::kPread ? "pread" : "pwrite", outcome.points,
               outcome.failures, outcome.successes);
      }
    }
  }
}

// Each call that creates a file fails in turn.
TEST(ScratchFaults, ConstructionFailsCleanly) {
  const TemporaryDirectory dir;
  const int64_t before = open_descriptors();
  FaultyEnv env;
  int points = 0, failures = 0;
  for (const bool persistent : {false, true}) {
    for (const int error : {EIO, ENOSPC, EACCES, EINVAL, EOPNOTSUPP, EINTR, EMFILE}) {
      for (int n = 1;; ++n, ++points) {
        env.arm({.call = Call::kAny, .nth = n, .persistent = persistent, .error = error});
        std::unique_ptr<ScratchFile> file;
        const auto thrown = error_of([&] { file = std::make_unique<ScratchFile>(env, dir.path(), kBytes, kDirect); });
        const bool struck = env.struck() > 0;
        env.disarm();
        if (!struck) {
          EXPECT_FALSE(thrown);
          break;
        }
        EXPECT_FALSE(thrown && error == EINTR && !persistent) << n;
        EXPECT_TRUE(thrown || !persistent || n > 6) << n;  // the sixth call allocates
        failures += thrown ? 1 : 0;
        if (thrown) {
          EXPECT_EQ(static_cast<int>(thrown->kind()), static_cast<int>(ErrorKind::kIo)) << thrown->what();
          EXPECT_EQ(thrown->os_error(), error) << thrown->what();
        } else {
          Memory memory(kBytes);
          file->wait(file->write(0, memory.at(0), kBytes));
        }
        file.reset();
        EXPECT_EQ(env.open_fds(), 0) << n;
        EXPECT_EQ(dir.names().size(), 0u) << n;
        const ScratchFile next(system_env(), dir.path(), kPage);
      }
    }
  }
  EXPECT_EQ(open_descriptors(), before);
  EXPECT_GE(points, 80);
  figure("points of failure {}, errors {}, descriptors left 0, files left 0", points, failures);
}

TEST(ScratchFaults, FullDiskShowsAtOnce) {
  const TemporaryDirectory dir;
  FaultyEnv env;
  env.arm({.call = Call::kAllocate, .nth = 1, .persistent = true, .error = ENOSPC});
  const auto error = error_of([&] { ScratchFile(env, dir.path(), kBytes); });
  ASSERT_TRUE(error);
  EXPECT_EQ(error->os_error(), ENOSPC);
  EXPECT_NE(std::string(error->what()).find("could not allocate 49152 bytes"), std::string::npos) << error->what();
  env.disarm();
  ScratchFile file(env, dir.path(), kBytes, kDirect);
  Memory expected(kBytes), memory(kBytes);
  Rng rng(3);
  expected.fill(rng);
  file.wait(file.write(0, expected.at(0), kBytes));
  env.arm({.call = Call::kAllocate, .nth = 1, .persistent = true, .error = ENOSPC});
  expect_refusal([&] { file.grow(1000 * kPage); }, "could not grow", ErrorKind::kIo);
  EXPECT_EQ(env.calls(Call::kTruncate), 1);
  env.disarm();
  EXPECT_EQ(file.bytes(), kBytes);
  file.wait(file.read(0, memory.at(0), kBytes));
  EXPECT_EQ(std::memcmp(memory.at(0), expected.at(0), kBytes), 0);
  file.grow(1000 * kPage);
  EXPECT_EQ(file.bytes(), 1000 * kPage);
}

// Answers like a file system that lacks O_TMPFILE or O_DIRECT.
class PoorFileSystem : public FaultyEnv {
 public:
  PoorFileSystem(bool nameless, int direct_refused_at) : nameless_(nameless), refused_at_(direct_refused_at) {}
  int openat(int directory, const char* name, int flags, unsigned mode) override {
    if ((flags & O_TMPFILE) == O_TMPFILE && !nameless_) return -EOPNOTSUPP;
    const bool direct = flags & O_DIRECT;
    if (direct && refused_at_ == 1) {  // as on real systems, the file is created but cannot be opened
      const int fd = FaultyEnv::openat(directory, name, flags & ~O_DIRECT, mode);
      if (fd >= 0) close(fd);
      return -EINVAL;
    }
    const int fd = FaultyEnv::openat(directory, name, flags, mode);
    if (direct) direct_ = fd;
    if (!direct && fd == direct_) direct_ = -1;
    named_ += (flags & O_EXCL) && (flags & O_CREAT) ? 1 : 0;
    return fd;
  }
  int allocate(int fd, int64_t bytes) override {
    return refused_at_ == 2 && fd == direct_ ? -EINVAL : FaultyEnv::allocate(fd, bytes);
  }
  int64_t pread(int fd, void* to, int64_t bytes, int64_t offset) override {
    return refused_at_ == 3 && fd == direct_ ? -EINVAL : FaultyEnv::pread(fd, to, bytes, offset);
  }
  int named() const { return named_; }

 private:
  const bool nameless_;
  const int refused_at_;
  int direct_ = -1, named_ = 0;
};

TEST(ScratchFaults, WorksWithoutNamelessFilesAndWithoutDirectIo) {
  int cases = 0;
  for (const bool nameless : {true, false}) {
    for (const int refused_at : {0, 1, 2, 3}) {
      SCOPED_TRACE(std::to_string(nameless) + " " + std::to_string(refused_at));
      const TemporaryDirectory dir;
      PoorFileSystem env(nameless, refused_at);
      {
        ScratchFile file(env, dir.path(), kBytes, kDirect);
        EXPECT_EQ(dir.names().size(), 0u);
        EXPECT_EQ(env.named() > 0, !nameless);
        EXPECT_FALSE(refused_at && file.direct());
        Memory expected(kBytes), memory(kBytes);
        Rng rng(4);
        expected.fill(rng);
        file.wait(file.write(0, expected.at(0), kBytes));
        file.wait(file.read(0, memory.at(0), kBytes));
        EXPECT_EQ(std::memcmp(memory.at(0), expected.at(0), kBytes), 0);
      }
      EXPECT_EQ(env.open_fds(), 0);
      ++cases;
    }
  }
  // The name cannot be removed at once.
  const TemporaryDirectory dir;
  PoorFileSystem env(false, 0);
  env.arm({.call = Call::kUnlink, .nth = 1, .error = EIO});
  { const ScratchFile file(env, dir.path(), kBytes, kDirect); }
  EXPECT_EQ(env.struck(), 1);
  EXPECT_EQ(dir.names().size(), 0u);
  env.arm({.call = Call::kUnlink, .nth = 1, .persistent = true, .error = EIO});
  expect_refusal([&] { ScratchFile(env, dir.path(), kBytes, kDirect); }, dir.path() + "/.lowtide-", ErrorKind::kIo);
  EXPECT_EQ(dir.names().size(), 1u);  // and the message names it
  EXPECT_EQ(env.open_fds(), 0);
  figure("kinds of file system {}", cases);
}

// If a request fails while other requests of the same transfer are slow, they own their memory until wait() has thrown.
class SlowEnv : public FaultyEnv {
 public:
  int64_t pread(int fd, void* to, int64_t bytes, int64_t offset) override {
    if (offset == 0 && armed) return -EIO;
    ++under_way;
    if (armed) ::usleep(20000);
    const int64_t result = FaultyEnv::pread(fd, to, bytes, offset);
    --under_way;
    return result;
  }
  std::atomic<bool> armed = false;
  std::atomic<int> under_way = 0;
};

TEST(ScratchFaults, FailedTransferWaitsForItsOtherRequests) {
  const TemporaryDirectory dir;
  SlowEnv env;
  ScratchFile file(env, dir.path(), kBytes, kDirect);
  env.armed = true;
  for (int i = 0; i < 5; ++i) {
    auto memory = std::make_unique<Memory>(kBytes);
    const auto ticket = file.read(0, memory->at(0), kBytes);
    expect_refusal([&] { file.wait(ticket); }, "could not read 8192 bytes at offset 0 of", ErrorKind::kIo);
    EXPECT_EQ(env.under_way, 0);
  }
  {
    Memory memory(kBytes);
    ScratchFile going(env, dir.path(), kBytes, kBuffered);
    static_cast<void>(going.read(kPage, memory.at(0), kBytes - kPage));  // the destructor waits
  }
  EXPECT_EQ(env.under_way, 0);
}

}  // namespace
}  // namespace lowtide::testing
