#include <fcntl.h>

#include <algorithm>
#include <cerrno>
#include <memory>
#include <utility>

#include "core/error.h"
#include "memory/descriptor.h"
#include "optim/checkpoint_format.h"

namespace lowtide {
namespace checkpoint {
namespace {

std::string directory_of(const std::string& path) {
  const size_t slash = path.rfind('/');
  return slash == std::string::npos ? "." : slash == 0 ? "/" : path.substr(0, slash);
}

// A new file beside `path` that takes its name, or leaves nothing.
class Replacement {
 public:
  Replacement(Env& env, const std::string& path) : env_(env), path_(path) {
    remove_abandoned(env, path);  // first: they may take the room that this one needs
    for (int tries = 0; tries < kMostTries && !exists_; ++tries) create();
    if (!exists_) fail_io(EEXIST, "could not create '%s' and keep it: something removes it at once", name());
  }
  ~Replacement() {
    file_.close();
    if (exists_) remove();
  }
  Replacement(const Replacement&) = delete;
  Replacement& operator=(const Replacement&) = delete;

  // A full disk shows now, not after all state has been read.
  void allocate(int64_t bytes) {
    const int result = retry_interrupted([&] { return env_.allocate(file_.get(), bytes); });
    if (result == -EOPNOTSUPP || result == -EINVAL || result == -ENOSYS) return;  // this file system cannot
    if (result < 0) fail_io(-result, "no room for %lld bytes in '%s'", ll(bytes), name());
  }

  void append(const void* data, int64_t bytes) {
    const auto* from = static_cast<const char*>(data);
    while (bytes > 0) {
      const int64_t done = retry_interrupted([&] { return env_.pwrite(file_.get(), from, bytes, at_); });
      if (done <= 0) {
        fail_io(done == 0 ? EIO : static_cast<int>(-done), "could not write %lld bytes at %lld of '%s'", ll(bytes),
                ll(at_), name());
      }
      from += done;
      bytes -= done;
      at_ += done;
    }
  }

  void commit() {
    // Not tried again after an error, not even EINTR: the system may have dropped the data it could not write.
    if (const int result = env_.sync(file_.get())) fail_io(-result, "could not sync '%s'", name());
    if (const int result = file_.close()) fail_io(-result, "could not close '%s'", name());
    // Before the rename, so that only one thing can fail after it.
    const std::string directory = directory_of(path_);
    const Descriptor names = Descriptor::open(env_, directory, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (names.get() < 0) fail_io(-names.get(), "could not open the directory '%s'", directory.c_str());
    if (const int result = env_.rename(temporary_.c_str(), path_.c_str()))
      fail_io(-result, "could not rename '%s' to '%s'", name(), path_.c_str());
    exists_ = false;
    const int result = env_.sync(names.get());
    if (result == 0 || result == -EINVAL) return;  // EINVAL: this file system has no such thing
    fail_io(-result,
            "'%s' holds the new checkpoint, but after a power failure it may hold the old one: could not sync the "
            "directory '%s'",
            path_.c_str(), directory.c_str());
  }

 private:
  static constexpr int kMostTries = 100;

  const char* name() const { return temporary_.c_str(); }

  void remove() {
    retry_interrupted([&] { return env_.unlink(name()); });
  }

  // Leaves nothing, and exists_ false, if the name is taken or another save has taken the new file for abandoned.
  void create() {
    temporary_ = temporary_name(path_);
    file_ = Descriptor::open(env_, temporary_, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0666);
    if (file_.get() == -EEXIST) return;
    if (file_.get() < 0) fail_io(-file_.get(), "could not write '%s': no file '%s' there", path_.c_str(), name());
    // A descriptor of its own: the lock has to outlive the closing of the file, before the rename.
    lock_ = Descriptor::open(env_, temporary_, O_WRONLY | O_NOFOLLOW | O_CLOEXEC);
    const int opened = lock_.get();
    exists_ = opened >= 0 && lock_temporary(env_, opened) != Lock::kLost;
    if (exists_) return;
    remove();
    if (opened < 0 && opened != -ENOENT) fail_io(-opened, "could not open '%s' to lock it", name());
  }

  Env& env_;
  const std::string path_;
  std::string temporary_;
  Descriptor file_, lock_;
  bool exists_ = false;
  int64_t at_ = 0;
};

}  // namespace

void save(Env& env, const std::string& path, const Checkpoint& checkpoint, const StateReader& read,
          int64_t piece_bytes) {
  LT_REQUIRE(!path.empty() && path.back() != '/' && path.find('\0') == std::string::npos,
             "'%s' is not the name of a file", path.c_str());
  const std::vector<Array> arrays = arrays_of(checkpoint);
  Prefix prefix;
  prefix.piece_bytes = piece_bytes;
  int64_t largest = 0;
  for (const Array& array : arrays) {
    prefix.data_bytes += array.bytes;
    prefix.pieces += array.pieces(piece_bytes);
    largest = std::max(largest, array.bytes);
  }
  std::string head = encode_header(checkpoint);
  prefix.header_bytes = static_cast<int64_t>(head.size());
  head.insert(0, encode(prefix));
  head.resize(static_cast<size_t>(prefix.data_offset()), '\0');
  const auto piece = std::make_unique_for_overwrite<std::byte[]>(static_cast<size_t>(std::min(piece_bytes, largest)));
  std::vector<uint64_t> table;
  table.reserve(static_cast<size_t>(prefix.pieces) + 1);

  Replacement file(env, path);
  file.allocate(prefix.file_bytes());
  file.append(head.data(), static_cast<int64_t>(head.size()));
  for (const Array& array : arrays) {
    for (int64_t at = 0; at < array.bytes; at += piece_bytes) {
      const int64_t bytes = std::min(piece_bytes, array.bytes - at);
      read(array.part, at, piece.get(), bytes);
      table.push_back(piece_checksum(piece.get(), bytes, static_cast<int64_t>(table.size())));
      file.append(piece.get(), bytes);
    }
  }
  table.push_back(root_checksum(head, table));
  file.append(table.data(), static_cast<int64_t>(table.size()) * 8);
  file.commit();
}

}  // namespace checkpoint

void save_checkpoint(Env& env, const std::string& path, const Checkpoint& checkpoint, const StateReader& read) {
  checkpoint::save(env, path, checkpoint, read, checkpoint::kPieceBytes);
}

}  // namespace lowtide
