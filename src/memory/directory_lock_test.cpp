// Tests that only one process at a time has a directory, and that the error for another process names it. Whatever is
// planted in place of the lock file is not followed, waited for or overwritten. A forked child neither has nor keeps
// its parent's lock.
#include "memory/directory_lock.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>

#include "memory/descriptor.h"
#include "support/faulty_env.h"
#include "support/scratch_support.h"
#include "support/test.h"

namespace lowtide::testing {
namespace {

namespace fs = std::filesystem;

std::string lock_path(const TemporaryDirectory& dir) { return dir.path() + "/" + DirectoryLock::kFileName; }

std::string contents(const std::string& path) {
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

struct Locked {
  explicit Locked(const TemporaryDirectory& dir, Env& env = system_env())
      : folder(env, env.open(dir.path().c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC, 0)),
        lock(env, folder.get(), dir.path()) {}
  Descriptor folder;
  DirectoryLock lock;
};

// Returns 0 if it got the lock, 1 if it was refused with the expected message, and 2 otherwise.
int attempt(const TemporaryDirectory& dir, const std::string& wanted) {
  try {
    const Locked locked(dir);
    return 0;
  } catch (const Error& error) {
    const bool named = std::string(error.what()).find(wanted) != std::string::npos;
    if (!named) std::fprintf(stderr, "%s\n", error.what());
    return error.kind() == ErrorKind::kInvalidArgument && named ? 1 : 2;
  }
}

TEST(DirectoryLock, SharedWithinTheProcessRefusedToAnother) {
  const TemporaryDirectory dir;
  const int64_t before = open_descriptors();
  const std::string mine = "in use by process " + std::to_string(::getpid());
  {
    auto first = std::make_unique<Locked>(dir);
    auto second = std::make_unique<Locked>(dir);
    EXPECT_EQ(contents(lock_path(dir)), std::to_string(::getpid()) + "\n");
    EXPECT_EQ(fs::status(lock_path(dir)).permissions(), fs::perms(0600));
    EXPECT_EQ(in_child([&] { return attempt(dir, mine); }), 1);
    first.reset();
    EXPECT_EQ(in_child([&] { return attempt(dir, mine); }), 1);
    const Locked third(dir);
    second.reset();
    EXPECT_EQ(in_child([&] { return attempt(dir, mine); }), 1);
  }
  EXPECT_EQ(in_child([&] { return attempt(dir, mine); }), 0);
  EXPECT_EQ(open_descriptors(), before);
  EXPECT_TRUE(fs::exists(lock_path(dir)));
}

// A worker process that outlives its parent must not keep the directory in use.
TEST(DirectoryLock, ForkedChildDoesNotKeepIt) {
  const TemporaryDirectory dir;
  auto lock = std::make_unique<Locked>(dir);
  int go[2];
  ASSERT_EQ(::pipe(go), 0);
  const pid_t child = ::fork();
  if (child == 0) {
    char byte;
    ::close(go[1]);
    if (::read(go[0], &byte, 1) != 1) ::_exit(9);
    lock.reset();  // changes nothing in the child
    ::_exit(attempt(dir, "in use by process " + std::to_string(::getppid())));
  }
  lock.reset();
  EXPECT_EQ(in_child([&] { return attempt(dir, ""); }), 0);
  lock = std::make_unique<Locked>(dir);
  ASSERT_EQ(::write(go[1], "x", 1), 1);
  int status = 0;
  ::waitpid(child, &status, 0);
  EXPECT_EQ(WEXITSTATUS(status), 1);
  const std::string mine = "in use by process " + std::to_string(::getpid());
  EXPECT_EQ(in_child([&] { return attempt(dir, mine); }), 1);
  ::close(go[0]);
  ::close(go[1]);
}

TEST(DirectoryLock, ForkedChildDoesNotKeepItWhenItsParentIsKilled) {
  const TemporaryDirectory dir;
  int pids[2];
  ASSERT_EQ(::pipe(pids), 0);
  const pid_t parent = ::fork();
  if (parent == 0) {
    const Locked locked(dir);
    const pid_t child = ::fork();
    if (child != 0 && ::write(pids[1], &child, sizeof child) != sizeof child) ::_exit(1);
    for (;;) ::pause();
  }
  pid_t child = 0;
  ASSERT_EQ(::read(pids[0], &child, sizeof child), static_cast<ssize_t>(sizeof child));
  EXPECT_EQ(attempt(dir, "in use by process " + std::to_string(parent)), 1);
  ::kill(parent, SIGKILL);
  ::waitpid(parent, nullptr, 0);
  EXPECT_EQ(attempt(dir, ""), 0);
  EXPECT_EQ(::kill(child, SIGKILL), 0) << "the child was to be alive";
  ::close(pids[0]);
  ::close(pids[1]);
}

// A lock that the child takes is not released together with the locks that it has inherited.
TEST(DirectoryLock, ForkedChildTakesItsOwn) {
  const TemporaryDirectory dir;
  auto inherited = std::make_unique<Locked>(dir);
  int go[2];
  ASSERT_EQ(::pipe(go), 0);
  const pid_t child = ::fork();
  if (child == 0) {
    char byte;
    if (::read(go[0], &byte, 1) != 1) ::_exit(9);
    const Locked own(dir);
    inherited.reset();
    const std::string mine = "in use by process " + std::to_string(::getpid());
    ::_exit(in_child([&] { return attempt(dir, mine); }));
  }
  inherited.reset();
  ASSERT_EQ(::write(go[1], "x", 1), 1);
  int status = 0;
  ::waitpid(child, &status, 0);
  EXPECT_EQ(WEXITSTATUS(status), 1);
  ::close(go[0]);
  ::close(go[1]);
}

// Many processes take and release the lock as fast as they can. A file that only the owner may create shows whether
// there are two owners.
TEST(DirectoryLock, NeverTwoOwners) {
  const TemporaryDirectory dir;
  const std::string mark = dir.path() + "/owner";
  constexpr int kProcesses = 6;
  constexpr int kTries = 150;
  std::vector<pid_t> children;
  int counts[2];
  ASSERT_EQ(::pipe(counts), 0);
  for (int p = 0; p < kProcesses; ++p) {
    const pid_t child = ::fork();
    if (child == 0) {
      int owned = 0;
      for (int i = 0; i < kTries; ++i) {
        try {
          const Locked locked(dir);
          const int fd = ::open(mark.c_str(), O_CREAT | O_EXCL | O_WRONLY, 0600);
          if (fd < 0) ::_exit(2);  // another owner is in here
          ::close(fd);
          std::this_thread::yield();
          if (::unlink(mark.c_str()) < 0) ::_exit(3);
          ++owned;
        } catch (const Error& error) {
          if (error.kind() != ErrorKind::kInvalidArgument) ::_exit(4);
          ::usleep(100);
        }
      }
      if (::write(counts[1], &owned, sizeof owned) != sizeof owned) ::_exit(5);
      ::_exit(0);
    }
    children.push_back(child);
  }
  int failed = 0, owned = 0;
  for (const pid_t child : children) {
    int status = 0, part = 0;
    ::waitpid(child, &status, 0);
    if (status != 0) {
      ++failed;
      continue;
    }
    ASSERT_EQ(::read(counts[0], &part, sizeof part), static_cast<ssize_t>(sizeof part));
    owned += part;
  }
  EXPECT_EQ(failed, 0);
  EXPECT_GT(owned, kTries / 2);
  figure("attempts {} by {} processes, owned {}, double owners {}", kProcesses * kTries, kProcesses, owned, failed);
  ::close(counts[0]);
  ::close(counts[1]);
}

TEST(DirectoryLock, ThreadsShareIt) {
  const TemporaryDirectory dir;
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 100; ++i) const Locked locked(dir);
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(in_child([&] { return attempt(dir, ""); }), 0);
}

TEST(DirectoryLock, PlantedFilesAreRefused) {
  const int64_t before = open_descriptors();
  {
    const TemporaryDirectory dir;
    std::ofstream(dir.path() + "/precious") << "precious";
    const auto refused = [&] {
      expect_refusal([&] { const Locked locked(dir); }, "remove it");
      fs::remove(lock_path(dir));
    };
    fs::create_symlink("precious", lock_path(dir));
    refused();
    fs::create_symlink("not there", lock_path(dir));
    refused();
    EXPECT_FALSE(fs::exists(dir.path() + "/not there"));
    fs::create_hard_link(dir.path() + "/precious", lock_path(dir));
    refused();
    ASSERT_EQ(::mkfifo(lock_path(dir).c_str(), 0600), 0);
    refused();
    fs::create_directory(lock_path(dir));
    refused();
    EXPECT_EQ(contents(dir.path() + "/precious"), "precious");
    std::ofstream(lock_path(dir)) << "999999999 left by one that was killed, longer than a process id can be";
    const Locked locked(dir);
    EXPECT_EQ(contents(lock_path(dir)), std::to_string(::getpid()) + "\n");
  }
  EXPECT_EQ(open_descriptors(), before);
}

// The lock file may hold no process id yet, or the id of a process that has ended.
TEST(DirectoryLock, UnknownHolderIsNotGuessed) {
  const TemporaryDirectory dir;
  for (const char* text : {"", "nonsense", "-5", "0", "999999999"}) {
    std::ofstream(lock_path(dir)) << text;
    const int fd = ::open(lock_path(dir).c_str(), O_RDWR | O_CLOEXEC);
    int holder = 0;
    ASSERT_EQ(system_env().lock(fd, &holder), 0);
    expect_refusal([&] { const Locked locked(dir); }, "in use by another process");
    ::close(fd);
  }
}

TEST(DirectoryLock, EveryFailureIsCleanedUp) {
  const TemporaryDirectory dir;
  FaultyEnv env;
  int points = 0;
  for (const bool persistent : {false, true}) {
    for (const int error : {EIO, ENOSPC, EINTR}) {
      for (int n = 2;; ++n, ++points) {  // the first call opens the directory
        env.arm({.call = Call::kAny, .nth = n, .persistent = persistent, .error = error});
        const auto thrown = error_of([&] { const Locked locked(dir, env); });
        if (env.struck() == 0) break;
        if (thrown) {
          EXPECT_EQ(static_cast<int>(thrown->kind()), static_cast<int>(ErrorKind::kIo)) << thrown->what();
          EXPECT_EQ(thrown->os_error(), error) << thrown->what();
        }
        EXPECT_EQ(!thrown, error == EINTR && !persistent) << n;
        EXPECT_EQ(env.open_fds(), 0);
        EXPECT_EQ(in_child([&] { return attempt(dir, ""); }), 0) << "still locked";
      }
    }
  }
  EXPECT_GE(points, 20);
  figure("points of failure {}, descriptors left 0, locks left 0", points);
}

}  // namespace
}  // namespace lowtide::testing
