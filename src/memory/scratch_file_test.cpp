// Tests that written bytes come back with either engine, with and without O_DIRECT, that the arguments and directories
// that the header forbids are refused, and that nothing is left in the directory, even if the process is killed.
#include "memory/scratch_file.h"

#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <signal.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>

#include "support/faulty_env.h"
#include "support/scratch_support.h"
#include "support/test.h"

namespace lowtide::testing {
namespace {

namespace fs = std::filesystem;
constexpr int64_t kPage = ScratchFile::kAlignment;

ScratchFile::Options with(bool io_uring, bool direct) {
  return {.direct = direct, .io_uring = io_uring, .depth = 4, .request_bytes = 16 * kPage};
}

// Returns the descriptor of this process's only nameless file in `directory`, or -1 if there is none.
int nameless_descriptor(const std::string& directory) {
  for (const auto& entry : fs::directory_iterator("/proc/self/fd")) {
    std::error_code gone;
    const std::string target = fs::read_symlink(entry.path(), gone);
    if (target.starts_with(directory + "/") && target.ends_with(" (deleted)")) {
      return std::stoi(entry.path().filename());
    }
  }
  return -1;
}

struct Place {
  const char* base;
  bool io_uring, direct;
};

class Everywhere : public ::testing::TestWithParam<Place> {};

INSTANTIATE_TEST_SUITE_P(, Everywhere,
                         ::testing::Values(Place{"/tmp", true, true}, Place{"/tmp", true, false},
                                           Place{"/tmp", false, true}, Place{"/tmp", false, false},
                                           Place{"/dev/shm", true, true}, Place{"/dev/shm", true, false},
                                           Place{"/dev/shm", false, true}, Place{"/dev/shm", false, false}),
                         [](const auto& info) {
                           return std::string(info.param.base[1] == 't' ? "tmp" : "shm") +
                                  (info.param.io_uring ? "_uring" : "_threads") +
                                  (info.param.direct ? "_direct" : "_buffered");
                         });

// Several transfers run at a time in disjoint places, and wait() is called in any order.
TEST_P(Everywhere, ContentsComeBack) {
  const TemporaryDirectory dir(GetParam().base);
  Rng rng = seeded("ContentsComeBack", 20261);
  const int64_t pages = 512;
  ScratchFile file(system_env(), dir.path(), pages * kPage, with(GetParam().io_uring, GetParam().direct));
  Memory expected(pages * kPage), memory(pages * kPage);
  expected.fill(rng);
  auto everything = [&](bool write) {  // in random pieces
    std::vector<ScratchFile::Ticket> tickets;
    for (int64_t at = 0; at < pages;) {
      const int64_t n = std::min(pages - at, rng.between(1, rng.chance(0.2) ? 200 : 20));
      tickets.push_back(write ? file.write(at * kPage, expected.at(at * kPage), n * kPage)
                              : file.read(at * kPage, memory.at(at * kPage), n * kPage));
      at += n;
    }
    for (const size_t i : rng.permutation(tickets.size())) file.wait(tickets[i]);
    return tickets.size();
  };
  size_t transfers = everything(true);
  transfers += everything(false);
  ASSERT_EQ(std::memcmp(memory.at(0), expected.at(0), static_cast<size_t>(memory.bytes)), 0);
  for (int i = 0; i < 200; ++i) {
    const int64_t at = rng.below(pages), n = rng.between(0, std::min<int64_t>(pages - at, 40));
    Memory part(40 * kPage);
    if (rng.chance(0.5)) {
      part.fill(rng);
      std::memcpy(expected.at(at * kPage), part.at(0), static_cast<size_t>(n * kPage));
      file.wait(file.write(at * kPage, part.at(0), n * kPage));
    } else {
      file.wait(file.read(at * kPage, part.at(0), n * kPage));
      ASSERT_EQ(std::memcmp(part.at(0), expected.at(at * kPage), static_cast<size_t>(n * kPage)), 0) << at;
    }
    ++transfers;
  }
  transfers += everything(false);
  EXPECT_EQ(std::memcmp(memory.at(0), expected.at(0), static_cast<size_t>(memory.bytes)), 0);
  figure("{}: engine {}, {}, {} transfers, bytes that differ 0", GetParam().base, file.engine(),
         file.direct() ? "direct" : "buffered", transfers);
}

TEST_P(Everywhere, GrowsKeepingItsContents) {
  const TemporaryDirectory dir(GetParam().base);
  Rng rng(7);
  ScratchFile file(system_env(), dir.path(), 0, with(GetParam().io_uring, GetParam().direct));
  EXPECT_EQ(file.bytes(), 0);
  Memory expected(300 * kPage), memory(300 * kPage);
  expected.fill(rng);
  for (const int64_t pages : {1, 3, 100, 50, 300}) {
    const int64_t before = file.bytes();
    file.grow(pages * kPage - (pages > 3 ? 1 : 0));
    EXPECT_EQ(file.bytes(), std::max(before, pages * kPage));
    if (file.bytes() > before) file.wait(file.write(before, expected.at(before), file.bytes() - before));
    file.wait(file.read(0, memory.at(0), file.bytes()));
    EXPECT_EQ(std::memcmp(memory.at(0), expected.at(0), static_cast<size_t>(file.bytes())), 0);
  }
  const auto ticket = file.read(0, memory.at(0), kPage);
  expect_refusal([&] { file.grow(1000 * kPage); }, "wait()");
  file.wait(ticket);
  // The size exceeds the limit for files; the system's signal for this must not arrive.
  expect_refusal([&] { file.grow(int64_t{1} << 60); }, "could not grow", ErrorKind::kIo);
  EXPECT_EQ(file.bytes(), 300 * kPage);
  file.wait(file.read(0, memory.at(0), file.bytes()));
  EXPECT_EQ(std::memcmp(memory.at(0), expected.at(0), static_cast<size_t>(file.bytes())), 0);
}

// A read past the end of the file fails instead of returning less data, and other transfers are not disturbed.
TEST_P(Everywhere, ShorterBehindOurBackIsAnError) {
  const TemporaryDirectory dir(GetParam().base);
  ScratchFile file(system_env(), dir.path(), 256 * kPage, with(GetParam().io_uring, GetParam().direct));
  Memory memory(256 * kPage), other(40 * kPage);
  file.wait(file.write(0, memory.at(0), 256 * kPage));
  const int fd = nameless_descriptor(dir.path());
  ASSERT_GE(fd, 0);
  ASSERT_EQ(::ftruncate(fd, 40 * kPage), 0);
  const auto whole = file.read(0, memory.at(0), 256 * kPage);
  const auto start = file.read(0, other.at(0), 40 * kPage);
  expect_refusal([&] { file.wait(whole); }, "shorter", ErrorKind::kIo);
  file.wait(start);
  struct rlimit limit {};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &limit), 0);
  const struct rlimit before = limit;
  limit.rlim_cur = static_cast<rlim_t>(100 * kPage);  // the nearest thing to a full disk without privileges
  ::signal(SIGXFSZ, SIG_IGN);
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &limit), 0);
  expect_refusal([&] { file.wait(file.write(0, memory.at(0), 256 * kPage)); }, "could not write", ErrorKind::kIo);
  expect_refusal([&] { file.grow(300 * kPage); }, "could not grow", ErrorKind::kIo);
  expect_refusal([&] { ScratchFile(system_env(), dir.path(), 256 * kPage); }, "could not allocate", ErrorKind::kIo);
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &before), 0);
  ::signal(SIGXFSZ, SIG_DFL);
  file.wait(file.write(0, memory.at(0), 256 * kPage));
}

// When a thread ends, io_uring gives up the requests that the thread has submitted.
TEST_P(Everywhere, TransfersOutliveTheThreadThatStartedThem) {
  const TemporaryDirectory dir(GetParam().base);
  Rng rng(9);
  ScratchFile file(system_env(), dir.path(), 256 * kPage, with(GetParam().io_uring, GetParam().direct));
  Memory expected(256 * kPage), memory(256 * kPage);
  expected.fill(rng);
  for (int i = 0; i < 20; ++i) {
    ScratchFile::Ticket ticket = 0;
    std::thread([&] { ticket = file.write(0, expected.at(0), 256 * kPage); }).join();
    file.wait(ticket);
    std::memset(memory.at(0), 0, static_cast<size_t>(memory.bytes));
    std::thread([&] { ticket = file.read(0, memory.at(0), 256 * kPage); }).join();
    file.wait(ticket);
    ASSERT_EQ(std::memcmp(memory.at(0), expected.at(0), static_cast<size_t>(memory.bytes)), 0);
  }
}

TEST_P(Everywhere, NothingIsLeftNorOpen) {
  const TemporaryDirectory dir(GetParam().base);
  const int64_t before = open_descriptors();
  Memory from(64 * kPage), to(64 * kPage);  // must outlive the files
  {
    ScratchFile file(system_env(), dir.path(), 64 * kPage, with(GetParam().io_uring, GetParam().direct));
    const ScratchFile other(system_env(), dir.path() + "/", 64 * kPage, with(GetParam().io_uring, GetParam().direct));
    const int fd = nameless_descriptor(dir.path());
    ASSERT_GE(fd, 0);
    struct stat status {};
    ASSERT_EQ(::fstat(fd, &status), 0);
    EXPECT_EQ(status.st_mode & 07777u, 0600u);
    EXPECT_EQ(status.st_nlink, 0u);
    EXPECT_GE(status.st_blocks * 512, 64 * kPage);  // allocated
    EXPECT_EQ(dir.names().size(), 0u);
    static_cast<void>(file.write(0, from.at(0), from.bytes));  // never waited for
    file.wait(file.read(0, to.at(0), 0));
    for (int i = 0; i < 8; ++i) static_cast<void>(file.read(i * kPage, to.at(i * kPage), kPage));
  }
  EXPECT_EQ(open_descriptors(), before);
  EXPECT_EQ(dir.names().size(), 0u);
}

TEST(ScratchFile, EnginesAreTheOnesAskedFor) {
  const TemporaryDirectory dir;
  const ScratchFile threads(system_env(), dir.path(), kPage, with(false, true));
  EXPECT_STREQ(threads.engine(), "threads");
  FaultyEnv env;
  const ScratchFile forced(env, dir.path(), kPage, with(true, true));
  EXPECT_STREQ(forced.engine(), "threads");
  const ScratchFile buffered(system_env(), dir.path(), kPage, with(true, false));
  EXPECT_FALSE(buffered.direct());
  const ScratchFile best(system_env(), dir.path(), kPage, with(true, true));
  figure("best here: engine {}, {}", best.engine(), best.direct() ? "direct" : "buffered");
}

TEST(ScratchFile, ThreadsWhereTheKernelGivesNoRing) {
  // Leave no descriptor for a ring: one is for the directory, which stays open, one for its lock and one for the file.
  struct ClosesNothing : Env {
    int close(int) override { return 0; }
  } env;
  const int status = in_child([&] {
    const struct rlimit few { 64, 64 };
    if (::setrlimit(RLIMIT_NOFILE, &few)) return 1;
    std::vector<int> taken;
    for (int fd = 0; (fd = ::open("/dev/null", O_RDONLY)) >= 0;) taken.push_back(fd);
    const TemporaryDirectory other;
    for (int i = 0; i < 3; ++i, taken.pop_back()) ::close(taken.back());
    const auto refused = error_of([&] {
      const ScratchFile file(env, other.path(), kPage, with(true, true));
      if (std::string(file.engine()) != "threads") throw Error(ErrorKind::kInternal, file.engine());
    });
    if (refused) std::fprintf(stderr, "%s\n", refused->what());
    return refused ? 2 : 0;
  });
  EXPECT_EQ(status, 0);
}

TEST(ScratchFile, ThreadsWhereTheKernelTakesNoRequestsOfARing) {
  const int status = in_child([] {
    // Refuse only io_uring_enter, as a sandbox may.
    sock_filter steps[] = {BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
                           BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, __NR_io_uring_enter, 0, 1),
                           BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
                           BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)};
    const sock_fprog program{4, steps};
    if (::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) || ::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program)) return 3;
    const TemporaryDirectory dir;
    const auto refused = error_of([&] {
      ScratchFile file(system_env(), dir.path(), kPage, with(true, true));
      if (std::string(file.engine()) != "threads") throw Error(ErrorKind::kInternal, file.engine());
      Memory memory(kPage);
      file.wait(file.write(0, memory.at(0), kPage));
    });
    if (refused) std::fprintf(stderr, "%s\n", refused->what());
    return refused ? 2 : 0;
  });
  if (status == 3) GTEST_SKIP() << "this kernel takes no filter of system calls (nor does qemu-user)";
  EXPECT_EQ(status, 0);
}

TEST(ScratchFile, BadArgumentsAreRefused) {
  const TemporaryDirectory dir;
  const auto make = [&](int64_t bytes, int depth, int64_t request) {
    return [&dir, bytes, depth, request] {
      ScratchFile(system_env(), dir.path(), bytes,
                  {.direct = true, .io_uring = true, .depth = depth, .request_bytes = request});
    };
  };
  int cases = 0;
  const auto refused = [&cases](const auto& act) {
    expect_refusal(act, "wanted");
    ++cases;
  };
  refused(make(-1, 8, kPage));
  refused(make(INT64_MAX, 8, kPage));
  refused(make(kPage, 0, kPage));
  refused(make(kPage, 1 << 20, kPage));
  refused(make(kPage, 8, 0));
  refused(make(kPage, 8, 4095));
  refused(make(kPage, 8, int64_t{1} << 40));
  for (const bool direct : {false, true}) {
    ScratchFile file(system_env(), dir.path(), 8 * kPage - 1, with(true, direct));
    EXPECT_EQ(file.bytes(), 8 * kPage);
    Memory memory(8 * kPage);
    for (const int64_t offset : {int64_t{-kPage}, int64_t{1}, int64_t{512}, 8 * kPage, INT64_MAX - kPage + 1}) {
      refused([&] { static_cast<void>(file.read(offset, memory.at(0), kPage)); });
      refused([&] { static_cast<void>(file.write(offset, memory.at(0), kPage)); });
    }
    for (const int64_t bytes : {int64_t{-kPage}, int64_t{1}, int64_t{512}, 9 * kPage, INT64_MAX - kPage + 1}) {
      refused([&] { static_cast<void>(file.read(0, memory.at(0), bytes)); });
      refused([&] { static_cast<void>(file.write(0, memory.at(0), bytes)); });
    }
    refused([&] { static_cast<void>(file.read(0, memory.at(512), kPage)); });
    refused([&] { static_cast<void>(file.write(0, memory.at(1), kPage)); });
    refused([&] { static_cast<void>(file.read(0, nullptr, kPage)); });
    refused([&] { file.wait(1); });
    const auto ticket = file.write(0, memory.at(0), kPage);
    refused([&] { file.wait(ticket + 1); });
    file.wait(ticket);
    refused([&] { file.wait(ticket); });
    file.wait(file.write(8 * kPage, memory.at(0), 0));
  }
  figure("arguments refused: {}", cases);
}

TEST(ScratchFile, BadDirectoriesAreRefused) {
  const TemporaryDirectory dir;
  const int64_t before = open_descriptors();
  const auto make = [](std::string path) { return [path] { ScratchFile(system_env(), path, kPage); }; };
  fs::create_directory(dir.path() + "/real");
  fs::create_directory_symlink("real", dir.path() + "/link");
  std::ofstream(dir.path() + "/file") << "kept";
  const std::string wanted = "wanted an existing directory";
  for (const char* name : {"/link", "/link/", "/link///", "/missing", "/file", "/file/", "/missing/below"}) {
    expect_refusal(make(dir.path() + name), wanted);
  }
  expect_refusal(make(dir.path() + "/" + std::string(300, 'x')), wanted);
  expect_refusal(make(""), "empty path");
  expect_refusal(make(dir.path() + std::string("\0x", 2)), "zero byte");
  EXPECT_TRUE(fs::is_empty(dir.path() + "/real"));
  std::string kept;
  std::ifstream(dir.path() + "/file") >> kept;
  EXPECT_EQ(kept, "kept");
  make(dir.path() + "/real/")();
  EXPECT_EQ(open_descriptors(), before);
}

TEST(ScratchFile, ReadOnlyDirectoryIsTheSystemsRefusal) {
  const TemporaryDirectory dir;
  fs::permissions(dir.path(), fs::perms::owner_read | fs::perms::owner_exec);
  if (::access(dir.path().c_str(), W_OK) == 0) {
    // Root may write everywhere, so use a child process without privileges, which may only read the directory.
    fs::permissions(dir.path(), fs::perms(0555));
    const int status = in_child([&] {
      if (::setgid(65534) || ::setuid(65534) || ::access(dir.path().c_str(), W_OK) == 0) return 77;
      const auto error = error_of([&] { ScratchFile(system_env(), dir.path(), kPage); });
      return error && error->kind() == ErrorKind::kIo && error->os_error() == EACCES ? 0 : 1;
    });
    fs::permissions(dir.path(), fs::perms(0700));
    if (status == 77) GTEST_SKIP() << "this user writes to read-only directories and cannot become another";
    EXPECT_EQ(status, 0);
    return;
  }
  const auto error = error_of([&] { ScratchFile(system_env(), dir.path(), kPage); });
  fs::permissions(dir.path(), fs::perms(0700));
  ASSERT_TRUE(error);
  EXPECT_EQ(static_cast<int>(error->kind()), static_cast<int>(ErrorKind::kIo)) << error->what();
  EXPECT_EQ(error->os_error(), EACCES);
}

// A process is killed at many moments during transfers; the next process finds an empty directory that is not in use.
TEST(ScratchFile, NothingIsLeftByAKilledProcess) {
  Rng rng = seeded("NothingIsLeftByAKilledProcess", 5);
  int kills = 0;
  for (const char* base : {"/tmp", "/dev/shm"}) {
    const TemporaryDirectory dir(base);
    for (int i = 0; i < 10; ++i, ++kills) {
      const bool io_uring = i % 2, direct = i % 4 < 2;
      int ready[2];
      ASSERT_EQ(::pipe(ready), 0);
      const pid_t child = ::fork();
      if (child == 0) {
        Memory memory(256 * kPage);
        ScratchFile file(system_env(), dir.path(), 256 * kPage, with(io_uring, direct));
        if (::write(ready[1], "x", 1) != 1) ::_exit(1);
        for (;;) file.wait(file.write(0, memory.at(0), memory.bytes));
      }
      char byte = 0;
      ASSERT_EQ(::read(ready[0], &byte, 1), 1);
      expect_refusal([&] { ScratchFile(system_env(), dir.path(), kPage); }, "process " + std::to_string(child));
      ::usleep(static_cast<useconds_t>(rng.below(3000)));
      ASSERT_EQ(::kill(child, SIGKILL), 0);
      int status = 0;
      ASSERT_EQ(::waitpid(child, &status, 0), child);
      ASSERT_TRUE(WIFSIGNALED(status));
      ::close(ready[0]);
      ::close(ready[1]);
      EXPECT_EQ(dir.names().size(), 0u);
      const ScratchFile next(system_env(), dir.path(), kPage);
    }
  }
  figure("processes killed {}, files left 0", kills);
}

// A forked child has no access to the transfers that its parent started.
TEST(ScratchFile, ForkedChildCanOnlyDestroyIt) {
  for (const bool io_uring : {false, true}) {
    const TemporaryDirectory dir;
    Memory memory(64 * kPage);
    auto file = std::make_unique<ScratchFile>(system_env(), dir.path(), 64 * kPage, with(io_uring, true));
    const auto ticket = file->write(0, memory.at(0), memory.bytes);
    EXPECT_EQ(in_child([&] {
                const auto refused = [](const std::optional<Error>& error) {
                  return error && error->kind() == ErrorKind::kInvalidArgument &&
                         std::string(error->what()).find("forked child") != std::string::npos;
                };
                if (!refused(error_of([&] { static_cast<void>(file->read(0, memory.at(0), kPage)); }))) return 1;
                if (!refused(error_of([&] { file->wait(ticket); }))) return 2;
                if (!refused(error_of([&] { file->grow(1); }))) return 3;
                file.reset();
                return 0;
              }),
              0);
    file->wait(ticket);
    file->wait(file->read(0, memory.at(0), memory.bytes));
  }
}

}  // namespace
}  // namespace lowtide::testing
