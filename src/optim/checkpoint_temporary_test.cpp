// Claim: a save removes what killed writers of its path have left and nothing else: no live writer's file, and nothing
// that only looks similar.
#include "optim/checkpoint_format.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "support/checkpoint_case.h"
#include "support/faulty_env.h"
#include "support/test.h"

namespace lowtide::testing {
namespace {

std::set<std::string> names_in(const TemporaryDirectory& directory) {
  const std::vector<std::string> names = directory.names();
  return {names.begin(), names.end()};
}

TEST(CheckpointTemporary, OnlyAbandonedFilesOfThisPathGo) {
  const TemporaryDirectory directory;
  const std::string path = directory.file("c");
  const Content content = small_content(1);
  const std::string tag = "-0123456789abcdef";
  const std::vector<std::string> abandoned = {"c.tmp-1" + tag, "c.tmp-4194304" + tag, "c.tmp-77-ffffffffffffffff"};
  const std::vector<std::string> alike = {"c.tmp",
                                          "c.tmp-",
                                          "c.tmp-1",
                                          "c.tmp--0123456789abcdef",
                                          "c.tmp-1" + tag + "0",
                                          "d.tmp-1" + tag,
                                          "cc.tmp-1" + tag,
                                          "c.tmp-1a" + tag,
                                          "c.tmp-1-0123456789ABCDEF",
                                          "c.tmp-1-0123456789abcde",
                                          "c-1" + tag,
                                          "c.tmp-1" + tag + ".bak"};
  for (const auto& names : {abandoned, alike})
    for (const std::string& name : names) write_file(directory.file(name), "x");
  // Entries with matching names that are not temporary files.
  const std::string folder = "c.tmp-2" + tag, link = "c.tmp-3" + tag, fifo = "c.tmp-4" + tag, twice = "c.tmp-5" + tag;
  std::filesystem::create_directory(directory.file(folder));
  std::filesystem::create_symlink(directory.file("d.tmp-1" + tag), directory.file(link));
  ASSERT_EQ(::mkfifo(directory.file(fifo).c_str(), 0600), 0);
  std::filesystem::create_hard_link(directory.file("c.tmp"), directory.file(twice));
  // A live writer's file.
  const std::string live = "c.tmp-6" + tag;
  write_file(directory.file(live), "x");
  const int fd = ::open(directory.file(live).c_str(), O_WRONLY | O_CLOEXEC);
  ASSERT_EQ(checkpoint::lock_temporary(system_env(), fd), checkpoint::Lock::kHeld);

  const int64_t descriptors = open_descriptors();
  content.save(path);
  std::set<std::string> wanted(alike.begin(), alike.end());
  wanted.insert({folder, link, fifo, twice, live, "c"});
  EXPECT_EQ(names_in(directory), wanted);
  EXPECT_EQ(open_descriptors(), descriptors);
  ::close(fd);
  content.save(path);  // control: the lock kept it
  wanted.erase(live);
  EXPECT_EQ(names_in(directory), wanted);
  EXPECT_TRUE(same(content, load(path)));
  figure("abandoned files removed {}/{}, others kept {}; that of a live writer kept until it ended", abandoned.size(),
         abandoned.size(), wanted.size() - 1);
}

// Runs another whole save of the same path at each call of a running one.
TEST(CheckpointTemporary, SavesToOnePathDoNotTakeEachOthersFile) {
  const TemporaryDirectory directory;
  const std::string path = directory.file("c");
  const Content content = small_content(1), other = small_content(2);
  FaultyEnv env;
  env.arm({});
  content.save(path, kSmallPiece, env);
  const int64_t calls = env.calls();
  int points = 0, whole = 0, wrong = 0, left = 0;
  for (int64_t nth = 1; nth <= calls; ++nth)
    for (const bool before : {true, false}) {
      Fault fault{.nth = nth};
      (before ? fault.before : fault.after) = [&] { other.save(path); };
      env.arm(fault);
      content.save(path, kSmallPiece, env);
      ++points;
      EXPECT_EQ(env.struck(), 1);
      const Content now = load(path);
      whole += same(content, now) || same(other, now);
      // The other save's name comes last only after the rename.
      wrong += same(other, now) != (nth + (before ? 0 : 1) > calls - 1);
      left += static_cast<int>(directory.names().size()) - 1;
    }
  EXPECT_EQ(whole, points);
  EXPECT_EQ(wrong + left, 0);
  EXPECT_GT(points, 20);
  figure("a save within a save at {} points: whole {}, of the wrong one {}, files left {}", points, whole, wrong, left);
}

TEST(CheckpointTemporary, WithoutLocksNothingIsRemovedAndSavesWork) {
  const TemporaryDirectory directory;
  const std::string path = directory.file("c"), old = "c.tmp-1-0123456789abcdef";
  const Content content = small_content(1);
  FaultyEnv env;
  int served = 0;
  for (const int error : {ENOLCK, EOPNOTSUPP, EINVAL, ENOSYS}) {
    write_file(directory.file(old), "x");
    env.arm({.call = Call::kLock, .nth = 1, .persistent = true, .error = error});
    content.save(path, kSmallPiece, env);
    served += env.struck() == 2 && same(content, load(path)) && names_in(directory) == std::set<std::string>{"c", old};
  }
  EXPECT_EQ(served, 4);
  EXPECT_EQ(env.open_fds(), 0);
  figure("file systems without locks: {}/4 served", served);
}

}  // namespace
}  // namespace lowtide::testing
