#include <fcntl.h>

#include <algorithm>

#include "core/error.h"
#include "memory/descriptor.h"
#include "optim/checkpoint_format.h"

namespace lowtide {

using checkpoint::Array;
using checkpoint::Prefix;

struct CheckpointFile::File {
  Env& env;
  Descriptor fd = {};
  Prefix prefix = {};
  std::vector<Array> arrays = {};
  std::vector<uint64_t> table = {};

  // Returns the bytes read; fewer than requested only at the end of the file.
  int64_t read(void* to, int64_t bytes, int64_t offset) const {
    int64_t done = 0;
    while (done < bytes) {
      const int64_t got = retry_interrupted(
          [&] { return env.pread(fd.get(), static_cast<char*>(to) + done, bytes - done, offset + done); });
      if (got < 0) {
        fail_io(static_cast<int>(-got), "could not read %lld bytes at %lld", ll(bytes - done), ll(offset + done));
      }
      if (got == 0) break;
      done += got;
    }
    return done;
  }

  void read_all(void* to, int64_t bytes, int64_t offset) const {
    const int64_t got = read(to, bytes, offset);
    LT_REQUIRE(got == bytes, "truncated: it ends at byte %lld", ll(offset + got));
  }

  // Reads everything except the data. Allocates no more than the file holds.
  Checkpoint open(const std::string& path) {
    // O_NONBLOCK keeps a pipe of that name from blocking and has no effect on files.
    fd = Descriptor::open(env, path, O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);
    if (fd.get() < 0) fail_io(-fd.get(), "could not open it");
    std::string head(static_cast<size_t>(checkpoint::kPrefixBytes), '\0');
    head.resize(static_cast<size_t>(read(head.data(), checkpoint::kPrefixBytes, 0)));
    prefix = checkpoint::decode_prefix(head);
    check_length();
    head.resize(static_cast<size_t>(prefix.data_offset()));
    read_all(head.data(), prefix.data_offset(), 0);
    table.resize(static_cast<size_t>(prefix.pieces) + 1);
    read_all(table.data(), prefix.table_bytes() + 8, prefix.table_offset());
    const uint64_t root = table.back();
    table.pop_back();
    LT_REQUIRE(checkpoint::root_checksum(head, table) == root,
               "garbled: the checksum of its header and table is wrong");
    const auto header_end = static_cast<size_t>(checkpoint::kPrefixBytes + prefix.header_bytes);
    LT_REQUIRE(head.find_first_not_of('\0', header_end) == std::string::npos, "the gap after its header is not zero");
    Checkpoint contents = checkpoint::decode_header(
        std::string_view(head).substr(checkpoint::kPrefixBytes, static_cast<size_t>(prefix.header_bytes)));
    arrays = checkpoint::arrays_of(contents);
    int64_t bytes = 0, pieces = 0;
    for (const Array& array : arrays) {
      bytes += array.bytes;
      pieces += array.pieces(prefix.piece_bytes);
    }
    LT_REQUIRE(bytes == prefix.data_bytes && pieces == prefix.pieces,
               "its header describes %lld bytes in %lld pieces; the file has %lld in %lld", ll(bytes), ll(pieces),
               ll(prefix.data_bytes), ll(prefix.pieces));
    return contents;
  }

  // Checks that the file has exactly as many bytes as the prefix says.
  void check_length() const {
    char byte;
    const auto wanted = ll(prefix.file_bytes());
    LT_REQUIRE(read(&byte, 1, wanted - 1) == 1, "truncated: it has fewer than %lld bytes", wanted);
    LT_REQUIRE(read(&byte, 1, wanted) == 0, "it has more than %lld bytes", wanted);
  }
};

namespace {

// Calls fn and adds the file's name to its errors.
template <class Fn>
void naming(const std::string& path, Fn&& fn) {
  try {
    fn();
  } catch (const Error& error) {
    throw Error(error.kind(), "checkpoint '" + path + "': " + error.what(), error.os_error());
  }
}

}  // namespace

CheckpointFile::CheckpointFile(Env& env, const std::string& path) : path_(path) {
  LT_REQUIRE(!path.empty() && path.find('\0') == std::string::npos, "'%s' is not the name of a file", path.c_str());
  file_.reset(new File{env});
  naming(path, [&] { contents_ = file_->open(path); });
}

CheckpointFile::~CheckpointFile() = default;

void CheckpointFile::load(const StateWriter& write) const {
  const int64_t piece_bytes = file_->prefix.piece_bytes;
  int64_t largest = 0;
  for (const Array& array : file_->arrays) largest = std::max(largest, array.bytes);
  const auto piece = std::make_unique_for_overwrite<std::byte[]>(static_cast<size_t>(std::min(piece_bytes, largest)));
  size_t index = 0;
  for (const Array& array : file_->arrays) {
    for (int64_t at = 0; at < array.bytes; at += piece_bytes, ++index) {
      const int64_t bytes = std::min(piece_bytes, array.bytes - at);
      const int64_t offset = file_->prefix.data_offset() + array.offset + at;
      naming(path_, [&] {
        file_->read_all(piece.get(), bytes, offset);
        LT_REQUIRE(checkpoint::piece_checksum(piece.get(), bytes, static_cast<int64_t>(index)) == file_->table[index],
                   "garbled: the checksum of its %lld bytes at %lld (state '%.100s' of parameter '%.100s') is wrong",
                   ll(bytes), ll(offset), contents_.params[array.part.param].states[array.part.state].name.c_str(),
                   contents_.params[array.part.param].name.c_str());
      });
      write(array.part, at, piece.get(), bytes);  // the writer's exceptions pass unchanged
    }
  }
}

}  // namespace lowtide
