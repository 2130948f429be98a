// Names, locks and removes the files that hold checkpoints until they are whole.

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <exception>
#include <filesystem>
#include <memory>
#include <random>
#include <string_view>

#include "core/error.h"
#include "memory/descriptor.h"
#include "optim/checkpoint_format.h"

namespace lowtide::checkpoint {
namespace {

constexpr char kMark[] = ".tmp-";
constexpr std::string_view kDigits = "0123456789", kHexDigits = "0123456789abcdef";
constexpr size_t kTagDigits = 16;

bool only(std::string_view text, std::string_view of) {
  return !text.empty() && text.find_first_not_of(of) == text.npos;
}

// True if temporary_name() could have made `candidate` for a file named `name`.
bool is_temporary_of(std::string_view candidate, std::string_view name) {
  const std::string_view mark(kMark);
  if (!candidate.starts_with(name) || !candidate.substr(name.size()).starts_with(mark)) return false;
  const std::string_view rest = candidate.substr(name.size() + mark.size());
  const size_t dash = rest.find('-');
  if (dash == rest.npos) return false;
  const std::string_view tag = rest.substr(dash + 1);
  return only(rest.substr(0, dash), kDigits) && tag.size() == kTagDigits && only(tag, kHexDigits);
}

void remove_if_abandoned(Env& env, const std::string& file) {
  // O_NONBLOCK: a planted FIFO must not block.
  constexpr int kFlags = O_WRONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK | O_NOCTTY;
  const Descriptor fd = Descriptor::open(env, file, kFlags);
  struct stat status {};
  if (fd.get() < 0 || ::fstat(fd.get(), &status) != 0 || !S_ISREG(status.st_mode)) return;
  // Removes it under the lock, so that a writer that has not locked it yet notices.
  if (lock_temporary(env, fd.get()) == Lock::kHeld) retry_interrupted([&] { return env.unlink(file.c_str()); });
}

}  // namespace

std::string temporary_name(const std::string& path) {
  std::random_device random;
  const uint64_t tag = uint64_t{random()} << 32 | random();
  return format("%s%s%ld-%016llx", path.c_str(), kMark, static_cast<long>(::getpid()),
                static_cast<unsigned long long>(tag));
}

Lock lock_temporary(Env& env, int fd) {
  int holder = 0;
  const int result = retry_interrupted([&] { return env.lock(fd, &holder); });
  if (result == -EAGAIN) return Lock::kLost;
  if (result < 0) return Lock::kNone;
  struct stat status {};
  return ::fstat(fd, &status) == 0 && status.st_nlink == 1 ? Lock::kHeld : Lock::kLost;
}

// Uses readdir(): directory_iterator without exceptions ends the process when memory is short.
void remove_abandoned(Env& env, const std::string& path) noexcept {
  try {
    const std::filesystem::path whole(path);
    const std::string name = whole.filename().string();
    const std::filesystem::path directory = whole.has_parent_path() ? whole.parent_path() : ".";
    const std::unique_ptr<DIR, int (*)(DIR*)> entries(::opendir(directory.c_str()), ::closedir);
    while (const dirent* entry = entries ? ::readdir(entries.get()) : nullptr)
      if (is_temporary_of(entry->d_name, name)) remove_if_abandoned(env, (directory / entry->d_name).string());
  } catch (const std::exception&) {  // memory is short: leave it to the next save
  }
}

}  // namespace lowtide::checkpoint
