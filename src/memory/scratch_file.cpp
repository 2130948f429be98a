#include "memory/scratch_file.h"

#include <fcntl.h>
#include <sys/random.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "core/error.h"
#include "memory/io_engine.h"

namespace lowtide {
namespace {

// Only Linux has these flags. On other systems transfers use the page cache, and files have a name for a moment.
#if defined(O_TMPFILE) && defined(O_DIRECT)
constexpr int kNameless = O_TMPFILE | O_EXCL;  // with O_EXCL the file can never get a name
constexpr int kDirect = O_DIRECT;
#else
constexpr int kNameless = 0, kDirect = 0;
#endif

constexpr int kMaxDepth = 1024;
constexpr int64_t kMaxRequestBytes = 1 << 30;  // the system transfers less than 2 GiB per call
constexpr int64_t kMaxBytes = int64_t{1} << 62;

int64_t checked_size(int64_t bytes) {
  LT_REQUIRE(bytes >= 0 && bytes <= kMaxBytes, "got a scratch file of %lld bytes, wanted 0 to 2^62", ll(bytes));
  return round_up(bytes, ScratchFile::kAlignment);
}

const ScratchFile::Options& checked(const ScratchFile::Options& options) {
  LT_REQUIRE(options.depth >= 1 && options.depth <= kMaxDepth, "got depth=%d, wanted 1 to %d", options.depth,
             kMaxDepth);
  LT_REQUIRE(options.request_bytes > 0 && options.request_bytes <= kMaxRequestBytes &&
                 options.request_bytes % ScratchFile::kAlignment == 0,
             "got request_bytes=%lld, wanted a multiple of %lld up to 2^30", ll(options.request_bytes),
             ll(ScratchFile::kAlignment));
  return options;
}

// A trailing slash would make the system follow a link despite O_NOFOLLOW.
std::string without_slashes(std::string path) {
  LT_REQUIRE(!path.empty() && path.find('\0') == std::string::npos,
             "got %s as the directory for scratch files, wanted the path of a directory",
             path.empty() ? "an empty path" : "a path with a zero byte");
  while (path.size() > 1 && path.back() == '/') path.pop_back();
  return path;
}

Descriptor open_directory(Env& env, const std::string& path) {
  Descriptor directory = Descriptor::open(env, path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
  const int fd = directory.get();
  LT_REQUIRE(fd != -ENOTDIR && fd != -ELOOP && fd != -ENOENT && fd != -ENAMETOOLONG,
             "got %s for scratch files, wanted an existing directory that is not a symbolic link (errno %d): create it "
             "or give another",
             path.c_str(), -fd);
  if (fd < 0) fail_io(-fd, "could not open the directory %s for scratch files", path.c_str());
  return directory;
}

std::string random_name() {
  unsigned long long number = 0;
  if (::getentropy(&number, sizeof number) != 0) {  // any number will do, because O_EXCL provides the protection
    number = static_cast<unsigned long long>(::getpid()) ^ reinterpret_cast<uintptr_t>(&number);
  }
  return format(".lowtide-%016llx", number);
}

// Creates a file without O_TMPFILE. Nobody else can have created the file, and its name is removed at once.
Descriptor create_named(Env& env, int directory, const std::string& path, int flags) {
  constexpr int kTries = 16;
  int fd = -EEXIST;
  std::string name;
  for (int i = 0; i < kTries && fd == -EEXIST; ++i) {
    name = random_name();
    fd = retry_interrupted(
        [&] { return env.openat(directory, name.c_str(), flags | O_CREAT | O_EXCL | O_NOFOLLOW, 0600); });
  }
  if (fd == -EINVAL) env.unlinkat(directory, name.c_str());  // O_DIRECT may be refused after the file has been created
  Descriptor file(env, fd);
  if (fd < 0) return file;
  int result = -EINTR;
  for (int i = 0; i < kTries && result < 0 && result != -ENOENT; ++i) result = env.unlinkat(directory, name.c_str());
  if (result < 0 && result != -ENOENT) {
    fail_io(-result, "could not remove the name of the new scratch file %s/%s: remove it", path.c_str(), name.c_str());
  }
  return file;
}

Descriptor create(Env& env, int directory, const std::string& path, bool direct) {
  const int flags = O_RDWR | O_CLOEXEC | (direct ? kDirect : 0);
  if (!kNameless) return create_named(env, directory, path, flags);
  const int fd = retry_interrupted([&] { return env.openat(directory, ".", flags | kNameless, 0600); });
  // File systems and kernels without O_TMPFILE return these errors.
  const bool unknown = fd == -EOPNOTSUPP || fd == -EISDIR || fd == -ENOENT || (fd == -EINVAL && !direct);
  return unknown ? create_named(env, directory, path, flags) : Descriptor(env, fd);
}

int allocate(Env& env, int fd, int64_t bytes) {
  return -retry_interrupted([&] { return env.allocate(fd, bytes); });
}

// Opens the file without O_DIRECT if the file system refuses it at any point: in open(), while allocating by writes
// (without a system call for that), or in the first transfer, if it requires more than kAlignment.
Descriptor open_file(Env& env, int directory, const std::string& path, int64_t bytes, bool* direct) {
  for (;; *direct = false) {
    Descriptor file = create(env, directory, path, *direct);
    const int fd = file.get();
    if (fd == -EINVAL && *direct) continue;
    if (fd < 0) fail_io(-fd, "could not create a scratch file in %s", path.c_str());
    // The file is never empty, so a file system that cannot allocate is noticed here and not only in grow().
    const int error = allocate(env, fd, std::max(bytes, ScratchFile::kAlignment));
    if (error == EINVAL && *direct) continue;
    if (error) fail_io(error, "could not allocate %lld bytes for a scratch file in %s", ll(bytes), path.c_str());
    if (*direct) {
      alignas(ScratchFile::kAlignment) std::byte first[ScratchFile::kAlignment];
      if (env.pread(fd, first, sizeof first, 0) == -EINVAL) continue;
    }
    return file;
  }
}

}  // namespace

void check_scratch_directory(Env& env, const std::string& directory) {
  open_directory(env, without_slashes(directory));
}

UnnamedFile::UnnamedFile(Env& env, const std::string& directory, int64_t bytes, bool try_direct)
    : path(without_slashes(directory)), direct(try_direct && kDirect) {
  const Descriptor folder = open_directory(env, path);
  lock.emplace(env, folder.get(), path);
  file = open_file(env, folder.get(), path, bytes, &direct);
}

ScratchFile::ScratchFile(Env& env, const std::string& directory, int64_t bytes, const Options& options)
    : env_(env),
      bytes_(checked_size(bytes)),
      unnamed_(env, directory, bytes_, checked(options).direct) {
  std::unique_ptr<IoEngine> engine;
  if (options.io_uring && env.allows_io_uring()) engine = make_io_uring_engine(unnamed_.file.get(), options.depth);
  if (!engine) engine = make_thread_engine(env, unnamed_.file.get(), options.depth);
  transfers_.emplace(std::move(engine), options.depth, options.request_bytes, unnamed_.direct);
}

ScratchFile::~ScratchFile() {
  if (forks() != forks_) transfers_->abandon();
}

void ScratchFile::check_process() const {
  LT_REQUIRE(forks() == forks_,
             "got a scratch file used in a forked child of its process, wanted one that the child made itself");
}

void ScratchFile::check_transfer(bool write, int64_t offset, const std::byte* memory, int64_t bytes) const {
  check_process();
  const char* const operation = write ? "write" : "read";
  const auto address = reinterpret_cast<uintptr_t>(memory);
  LT_REQUIRE(offset % kAlignment == 0 && bytes % kAlignment == 0 && address % kAlignment == 0,
             "got a %s of %lld bytes at offset %lld, memory %p, wanted multiples of %lld", operation, ll(bytes),
             ll(offset), static_cast<const void*>(memory), ll(kAlignment));
  LT_REQUIRE(offset >= 0 && bytes >= 0 && bytes <= bytes_ && offset <= bytes_ - bytes,
             "got a %s of %lld bytes at offset %lld, wanted it within the %lld bytes of the scratch file", operation,
             ll(bytes), ll(offset), ll(bytes_));
  LT_REQUIRE(memory || bytes == 0, "got a %s of %lld bytes at no address, wanted memory", operation, ll(bytes));
}

ScratchFile::Ticket ScratchFile::start(bool write, int64_t offset, std::byte* memory, int64_t bytes) {
  check_transfer(write, offset, memory, bytes);
  return transfers_->start(write, offset, memory, bytes);
}

void ScratchFile::read_now(int64_t offset, std::byte* to, int64_t bytes) const {
  check_transfer(false, offset, to, bytes);
  for (int64_t all = 0; all < bytes;) {
    const int64_t done =
        retry_interrupted([&] { return env_.pread(unnamed_.file.get(), to + all, bytes - all, offset + all); });
    const int64_t begin = all;
    all += std::max<int64_t>(done, 0);
    if (unnamed_.direct && all < bytes) all = all / kAlignment * kAlignment;  // only whole pages can be read
    if (all == begin)
      fail_transfer({.failed = true,
                     .system_error = static_cast<int>(-std::min<int64_t>(done, 0)),
                     .offset = offset,
                     .bytes = bytes});
  }
}

void ScratchFile::grow(int64_t bytes) {
  check_process();
  const int64_t wanted = checked_size(bytes);
  LT_REQUIRE(transfers_->idle(), "got grow() with transfers under way, wanted wait() for each of them first");
  if (wanted <= bytes_) return;
  if (const int error = allocate(env_, unnamed_.file.get(), wanted)) {
    env_.truncate(unnamed_.file.get(), std::max(bytes_, kAlignment));  // frees the new allocation
    fail_io(error, "could not grow a scratch file in %s from %lld to %lld bytes", unnamed_.path.c_str(), ll(bytes_),
            ll(wanted));
  }
  bytes_ = wanted;
}

void ScratchFile::wait(Ticket ticket) {
  check_process();
  LT_REQUIRE(transfers_->knows(ticket), "got ticket %lld, wanted one that has not been waited for", ll(ticket));
  const Transfers::Outcome outcome = transfers_->wait(ticket);
  if (outcome.failed) fail_transfer(outcome);
}

void ScratchFile::fail_transfer(const Transfers::Outcome& outcome) const {
  const char* const reason = outcome.system_error ? "" : ": the file has been made shorter by another";
  fail_io(outcome.system_error, "could not %s %lld bytes at offset %lld of the scratch file in %s%s",
          outcome.write ? "write" : "read", ll(outcome.bytes), ll(outcome.offset), unnamed_.path.c_str(), reason);
}

}  // namespace lowtide
