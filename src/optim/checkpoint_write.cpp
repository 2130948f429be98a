#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <memory>
#include <utility>

#include "core/buffer.h"
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

// The rename replaces whatever has the name: a save to /dev/null as root would replace it for the whole system.
void refuse_special(Env& env, const std::string& path) {
  unsigned mode = 0;
  if (env.mode_of(path.c_str(), &mode) != 0 || S_ISREG(mode)) return;  // absent: creating the file reports errors
  if (S_ISDIR(mode)) fail_io(EISDIR, "could not replace '%s'", path.c_str());
  const char* const kind = S_ISFIFO(mode) ? "a pipe" : S_ISSOCK(mode) ? "a socket" : "a device";
  fail(ErrorKind::kInvalidArgument, "'%s' is %s; wanted a new name or a regular file's, which the checkpoint replaces",
       path.c_str(), kind);
}

}  // namespace

// A new file beside `path` that either takes its name or disappears.
class Writer::Replacement {
 public:
  Replacement(Env& env, const std::string& path) : env_(env), path_(path) {
    refuse_special(env, path);
    remove_abandoned(env, path);  // first: abandoned files may take room that this one needs
    for (int tries = 0; tries < kMostTries && !exists_; ++tries) create();
    if (!exists_) fail_io(EEXIST, "could not create '%s' and keep it: something removes it at once", name());
  }
  ~Replacement() {
    file_.close();
    if (exists_) remove();
  }
  Replacement(const Replacement&) = delete;
  Replacement& operator=(const Replacement&) = delete;

  // Reports a full disk now rather than after all state has been read.
  void allocate(int64_t bytes) {
    const int result = retry_interrupted([&] { return env_.allocate(file_.get(), bytes); });
    if (result == -EOPNOTSUPP || result == -EINVAL || result == -ENOSYS) return;  // this file system cannot allocate
    if (result < 0) fail_io(-result, "no room for %lld bytes in '%s'", ll(bytes), name());
  }

  void write(const void* data, int64_t at, int64_t bytes) {
    const auto* const from = static_cast<const char*>(data);
    transfer("write", at, bytes,
             [&](int64_t done) { return env_.pwrite(file_.get(), from + done, bytes - done, at + done); });
  }
  void read(void* data, int64_t at, int64_t bytes) {
    auto* const to = static_cast<char*>(data);
    transfer("read back", at, bytes,
             [&](int64_t done) { return env_.pread(file_.get(), to + done, bytes - done, at + done); });
  }

  void commit() {
    // Never retry after an error, not even EINTR: the system may have dropped data that it could not write.
    if (const int result = env_.sync(file_.get())) fail_io(-result, "could not sync '%s'", name());
    if (const int result = file_.close()) fail_io(-result, "could not close '%s'", name());
    // Opened before the rename, so that only one thing can fail after it.
    const std::string directory = directory_of(path_);
    const Descriptor names = Descriptor::open(env_, directory, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (names.get() < 0) fail_io(-names.get(), "could not open the directory '%s'", directory.c_str());
    if (const int result = env_.rename(temporary_.c_str(), path_.c_str()))
      fail_io(-result, "could not rename '%s' to '%s'", name(), path_.c_str());
    exists_ = false;
    const int result = env_.sync(names.get());
    if (result == 0 || result == -EINVAL) return;  // EINVAL: this file system does not support it
    fail_io(-result,
            "'%s' holds the new checkpoint, but after a power failure it may hold the old one: could not sync the "
            "directory '%s'",
            path_.c_str(), directory.c_str());
  }

 private:
  static constexpr int kMostTries = 100;

  // Repeats call(bytes done so far) until all bytes are done.
  template <class Call>
  void transfer(const char* what, int64_t at, int64_t bytes, Call&& call) {
    for (int64_t all = 0; all < bytes;) {
      const int64_t done = retry_interrupted([&] { return call(all); });
      if (done <= 0) {
        fail_io(done == 0 ? EIO : static_cast<int>(-done), "could not %s %lld bytes at %lld of '%s'", what,
                ll(bytes - all), ll(at + all), name());
      }
      all += done;
    }
  }

  const char* name() const { return temporary_.c_str(); }

  void remove() {
    retry_interrupted([&] { return env_.unlink(name()); });
  }

  // If the name is taken or another save considered the new file abandoned, leaves no file and exists_ false.
  void create() {
    temporary_ = temporary_name(path_);
    file_ = Descriptor::open(env_, temporary_, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0666);
    if (file_.get() == -EEXIST) return;
    if (file_.get() < 0) fail_io(-file_.get(), "could not write '%s': no file '%s' there", path_.c_str(), name());
    // The lock has its own descriptor: it must outlive the closing of the file before the rename.
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
};

Writer::Writer(Env& env, std::string path, const Checkpoint& checkpoint, int64_t piece_bytes)
    : env_(env), path_(std::move(path)), arrays_(arrays_of(checkpoint)) {
  LT_REQUIRE(!path_.empty() && path_.back() != '/' && path_.find('\0') == std::string::npos,
             "'%s' is not the name of a file", path_.c_str());
  prefix_.piece_bytes = piece_bytes;
  for (const Array& array : arrays_) {
    first_piece_.push_back(prefix_.pieces);
    prefix_.data_bytes += array.bytes;
    prefix_.pieces += array.pieces(piece_bytes);
  }
  head_ = encode_header(checkpoint);
  prefix_.header_bytes = static_cast<int64_t>(head_.size());
  head_.insert(0, encode(prefix_));
  head_.resize(static_cast<size_t>(prefix_.data_offset()), '\0');
  table_.reserve(static_cast<size_t>(prefix_.pieces) + 1);
  table_.resize(static_cast<size_t>(prefix_.pieces));
}

Writer::~Writer() = default;

void Writer::close() noexcept { file_.reset(); }

void Writer::open() {
  file_ = std::make_unique<Replacement>(env_, path_);
  file_->allocate(prefix_.file_bytes());
  file_->write(head_.data(), 0, static_cast<int64_t>(head_.size()));
}

void Writer::write_data(int64_t at, const std::byte* from, int64_t bytes) {
  file_->write(from, prefix_.data_offset() + at, bytes);
}

void Writer::write(size_t array, int64_t at, const std::byte* from, int64_t bytes) {
  const Array& of = arrays_[array];
  for (const int64_t end = at + bytes; at < end;) {
    const int64_t number = at / prefix_.piece_bytes, begin = number * prefix_.piece_bytes;
    const int64_t stop = std::min(begin + prefix_.piece_bytes, of.bytes), n = std::min(stop, end) - at;
    const int64_t piece = first_piece_[array] + number;
    if (n == stop - begin)
      table_[static_cast<size_t>(piece)] = piece_checksum(from, n, piece);
    else
      parts_.push_back({piece, of.offset + at, n, piece_checksum(from, n, of.offset + at)});
    write_data(of.offset + at, from, n);
    from += n;
    at += n;
  }
}

void Writer::join_parts() {
  if (parts_.empty()) return;
  std::sort(parts_.begin(), parts_.end(), [](const Part& a, const Part& b) { return a.at < b.at; });
  const Buffer memory(env_, static_cast<size_t>(prefix_.piece_bytes));
  for (auto part = parts_.begin(); part != parts_.end();) {
    const int64_t piece = part->piece, begin = part->at;
    int64_t bytes = 0;
    for (; part != parts_.end() && part->piece == piece; ++part, bytes = part[-1].at + part[-1].bytes - begin) {
      std::byte* const to = memory.data() + (part->at - begin);
      file_->read(to, prefix_.data_offset() + part->at, part->bytes);
      if (piece_checksum(to, part->bytes, part->at) != part->checksum)
        fail_io(0, "%lld bytes of '%s' read back are not what was written; the disk was damaged", ll(part->bytes),
                path_.c_str());
    }
    table_[static_cast<size_t>(piece)] = piece_checksum(memory.data(), bytes, piece);
  }
}

void Writer::commit() {
  join_parts();
  table_.push_back(root_checksum(head_, table_));
  file_->write(table_.data(), prefix_.table_offset(), static_cast<int64_t>(table_.size()) * 8);
  file_->commit();
}

void save(Env& env, const std::string& path, const Checkpoint& checkpoint, const StateReader& read,
          int64_t piece_bytes) {
  Writer writer(env, path, checkpoint, piece_bytes);
  int64_t largest = 0;
  for (const Array& array : writer.arrays()) largest = std::max(largest, array.bytes);
  const auto piece = std::make_unique_for_overwrite<std::byte[]>(static_cast<size_t>(std::min(piece_bytes, largest)));
  writer.open();
  for (size_t i = 0; i < writer.arrays().size(); ++i) {
    const Array& array = writer.arrays()[i];
    for (int64_t at = 0; at < array.bytes; at += piece_bytes) {
      const int64_t bytes = std::min(piece_bytes, array.bytes - at);
      read(array.part, at, piece.get(), bytes);
      writer.write(i, at, piece.get(), bytes);
    }
  }
  writer.commit();
}

}  // namespace checkpoint

void save_checkpoint(Env& env, const std::string& path, const Checkpoint& checkpoint, const StateReader& read) {
  checkpoint::save(env, path, checkpoint, read, checkpoint::kPieceBytes);
}

}  // namespace lowtide
