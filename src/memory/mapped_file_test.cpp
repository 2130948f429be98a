// Tests that memory always has the bytes that were written last, whether they are in memory or not, that pages leave
// memory in let_go(), and that a disk error throws an exception that names the range and loses and leaks nothing.
#include "memory/mapped_file.h"

#include <sys/mman.h>
#include <sys/statfs.h>

#include "support/faulty_env.h"
#include "support/scratch_support.h"
#include "support/test.h"

namespace lowtide::testing {
namespace {

constexpr int64_t kFilePages = 64, kFileBytes = kFilePages * kPageBytes;

// Returns the number of the file's pages that are in memory.
int64_t resident(const MappedFile& file) {
  std::vector<unsigned char> pages(static_cast<size_t>(kFilePages));
  if (::mincore(file.data(), static_cast<size_t>(kFileBytes), pages.data()) != 0) return -1;
  return std::count_if(pages.begin(), pages.end(), [](unsigned char page) { return page & 1; });
}

TEST(MappedFiles, HaveWhatWasWrittenLast) {
  const TemporaryDirectory dir;
  MappedFile file(system_env(), dir.path(), kFileBytes - 5);
  ASSERT_EQ(file.bytes(), kFileBytes);
  struct statfs system {};
  ASSERT_EQ(::statfs(dir.path().c_str(), &system), 0);
  const bool in_memory = system.f_type == 0x01021994;  // tmpfs keeps its pages
  std::vector<std::byte> wanted(static_cast<size_t>(kFileBytes));
  Rng rng(11);
  int64_t read = 0, written = 0;
  for (int round = 0; round < 200; ++round) {
    const int64_t first = static_cast<int64_t>(rng.next() % kFilePages);
    const int64_t bytes = static_cast<int64_t>(rng.next() % static_cast<uint64_t>(kFilePages - first) + 1) * kPageBytes;
    const int64_t offset = first * kPageBytes;
    if (round % 2) {
      file.bring(offset, bytes);
      read += bytes;
    }
    if (round % 3) {
      for (int64_t i = offset; i < offset + bytes; i += 97)
        file.data()[i] = wanted[static_cast<size_t>(i)] = std::byte(rng.next());
    }
    file.let_go(offset, bytes, round % 3 != 0);
    written += round % 3 ? bytes : 0;
    ASSERT_EQ(std::memcmp(file.data(), wanted.data(), wanted.size()), 0) << "round " << round;
    file.bring(0, kFileBytes);
    read += kFileBytes;
    file.let_go(offset, 0, round % 2 == 0);
    ASSERT_TRUE(in_memory || resident(file) == kFilePages) << "round " << round << ": a range of nothing is nothing";
    file.let_go(0, kFileBytes, true);
    written += kFileBytes;
    ASSERT_TRUE(in_memory || resident(file) == 0) << "round " << round << ": " << resident(file) << " pages";
  }
  EXPECT_EQ(file.read_bytes(), read);
  EXPECT_EQ(file.written_bytes(), written);
  figure("200 rounds, " + std::to_string(read) + " bytes brought, " + std::to_string(written) + " let go, 0 differ" +
         (in_memory ? "; tmpfs" : "; no page stays"));
}

TEST(MappedFiles, SayWhatTheDiskRefuses) {
  const TemporaryDirectory dir;
  const int64_t before = open_descriptors();
  FaultyEnv env;
  {
    MappedFile file(env, dir.path(), kFileBytes);
    std::memset(file.data(), 7, static_cast<size_t>(kFileBytes));
    for (const bool reads : {true, false}) {
      const auto act = [&] { reads ? file.bring(8192, 4096) : file.let_go(8192, 4096, true); };
      env.arm({.call = reads ? Call::kPread : Call::kSync, .nth = 1, .error = EINTR});
      EXPECT_NO_THROW(act());
      EXPECT_EQ(env.struck(), 1);
      env.arm({.call = reads ? Call::kPread : Call::kSync, .nth = 1, .error = EIO});
      const std::optional<Error> error = error_of(act);
      ASSERT_TRUE(error);
      EXPECT_EQ(error->kind(), ErrorKind::kIo);
      EXPECT_NE(std::string(error->what()).find("4096 bytes at offset 8192 of the weights in " + dir.path()),
                std::string::npos)
          << error->what();
    }
    env.arm({.call = Call::kPread, .nth = 1, .persistent = true, .short_ = true, .short_bytes = 100});
    EXPECT_NO_THROW(file.bring(0, 8192));
    EXPECT_EQ(file.data()[8192 + 17], std::byte{7});
    env.disarm();
    for (const auto& [offset, bytes] :
         {std::pair<int64_t, int64_t>{-4096, 4096}, {0, kFileBytes + 4096}, {1, 4096}, {0, 5}}) {
      const std::optional<Error> error = error_of([&, offset = offset, bytes = bytes] { file.bring(offset, bytes); });
      ASSERT_TRUE(error);
      EXPECT_EQ(error->kind(), ErrorKind::kInvalidArgument);
    }
  }
  for (const auto& [call, error, kind] : {std::tuple{Call::kAllocate, ENOSPC, ErrorKind::kIo},
                                          {Call::kMap, ENOMEM, ErrorKind::kOutOfMemory},
                                          {Call::kMap, EACCES, ErrorKind::kIo}}) {
    env.arm({.call = call, .nth = 1, .persistent = true, .error = error});
    const std::optional<Error> found = error_of([&] { MappedFile(env, dir.path(), kFileBytes); });
    ASSERT_TRUE(found);
    EXPECT_EQ(found->kind(), kind) << found->what();
  }
  EXPECT_EQ(env.open_fds(), 0);
  EXPECT_EQ(env.mapped_bytes(), 0);
  EXPECT_EQ(open_descriptors(), before);
  figure("9 refusals by name");
}

}  // namespace
}  // namespace lowtide::testing
