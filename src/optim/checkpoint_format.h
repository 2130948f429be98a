// The layout of a checkpoint file and its valid values (docs/project/checkpoint-format.md). Writer and reader share the
// checks, so nothing is written that could not be read.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "optim/checkpoint.h"

namespace lowtide::checkpoint {

constexpr uint32_t kVersion = 2;
constexpr int64_t kAlignment = 4096;  // alignment of data in the file
constexpr int64_t kPrefixBytes = 64;
constexpr int64_t kPieceBytes = int64_t{4} << 20;  // size of a written piece
constexpr int64_t kSmallestPiece = 4096, kLargestPiece = int64_t{16} << 20;
constexpr int64_t kMostHeaderBytes = 100'000'000;
constexpr int64_t kMostBytes = int64_t{1} << 60;  // limit of data and file: a sum of a few cannot overflow
constexpr size_t kMostNameBytes = 4096, kMostSizes = 64, kMostStates = 64, kMostCarried = 16;

// prefix | header | zeros up to a multiple of kAlignment | data | table of piece checksums | root
struct Prefix {
  int64_t piece_bytes = 0, header_bytes = 0, data_bytes = 0, pieces = 0;

  int64_t data_offset() const { return (kPrefixBytes + header_bytes + kAlignment - 1) / kAlignment * kAlignment; }
  int64_t table_offset() const { return data_offset() + data_bytes; }
  int64_t table_bytes() const { return pieces * 8; }
  int64_t file_bytes() const { return table_offset() + table_bytes() + 8; }
};
std::string encode(const Prefix& prefix);      // kPrefixBytes
Prefix decode_prefix(std::string_view bytes);  // throws kInvalidArgument; the result is internally consistent

// One array of the data: all codes or all scales of a state, cut into pieces from its start.
struct Array {
  StatePart part;
  int64_t offset = 0, bytes = 0;  // offset: in the data
  int64_t pieces(int64_t piece_bytes) const { return (bytes + piece_bytes - 1) / piece_bytes; }
};
// The arrays in file order, back to back. Checks every value of the checkpoint; throws kInvalidArgument.
std::vector<Array> arrays_of(const Checkpoint& checkpoint);

// The header is compact JSON with sorted keys. Both functions throw kInvalidArgument. Besides the text and the result,
// decode_header() holds at most one parameter at a time.
std::string encode_header(const Checkpoint& checkpoint);
Checkpoint decode_header(std::string_view text);

uint64_t piece_checksum(const void* data, int64_t bytes, int64_t index);
// Covers everything except the data: prefix, header, zeros and table.
uint64_t root_checksum(std::string_view head, const std::vector<uint64_t>& table);

// A checkpoint is written to `<path>.tmp-<pid>-<16 hex digits>` until it is whole; killed writers leave such files
// behind. A writer locks its file until the file has its final name, so a temporary file that can be locked belongs to
// nobody. (Without locks in the file system nothing is removed.) Returns another name on each call.
std::string temporary_name(const std::string& path);

enum class Lock {
  kHeld,
  kLost,  // another process holds the lock, or considered the file abandoned and removed it before it was locked
  kNone,  // the file system has no locks
};
// Locks the open file until its descriptor is closed.
Lock lock_temporary(Env& env, int fd);

// Removes the temporary files of `path` whose writers are gone. Files that cannot be removed stay.
void remove_abandoned(Env& env, const std::string& path) noexcept;

// Writes a checkpoint whose data arrive in any order. For one thread at a time.
class Writer {
 public:
  // Checks the name and every value without touching a file. env outlives this object. Throws kInvalidArgument.
  Writer(Env& env, std::string path, const Checkpoint& checkpoint, int64_t piece_bytes = kPieceBytes);
  // Unless commit() has returned, leaves an existing file untouched and nothing else behind.
  ~Writer();
  Writer(const Writer&) = delete;
  Writer& operator=(const Writer&) = delete;

  const std::vector<Array>& arrays() const { return arrays_; }
  const std::string& path() const { return path_; }
  int64_t piece_bytes() const { return prefix_.piece_bytes; }

  // Call open(), write() once for every byte of the data, then commit(). All throw kIo. commit() reads back each piece
  // that was written in parts, checks every part's checksum and computes the piece's.
  void open();
  // Writes bytes [at, at + bytes) of arrays()[array].
  void write(size_t array, int64_t at, const std::byte* from, int64_t bytes);
  void commit();
  // Discards an uncommitted file and leaves nothing behind.
  void close() noexcept;

 private:
  class Replacement;
  struct Part {                // one write of less than a whole piece
    int64_t piece, at, bytes;  // at: in the data
    uint64_t checksum;
  };
  void write_data(int64_t at, const std::byte* from, int64_t bytes);
  void join_parts();

  Env& env_;
  const std::string path_;
  const std::vector<Array> arrays_;
  std::vector<int64_t> first_piece_;  // for each array
  Prefix prefix_;
  std::string head_;
  std::vector<uint64_t> table_;
  std::vector<Part> parts_;
  std::unique_ptr<Replacement> file_;
};

// Like save_checkpoint(), with another piece size.
void save(Env& env, const std::string& path, const Checkpoint& checkpoint, const StateReader& read,
          int64_t piece_bytes);

}  // namespace lowtide::checkpoint
