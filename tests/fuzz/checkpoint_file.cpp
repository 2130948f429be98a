// Fuzzes checkpoint files: prefix, header, gap, pieces, table, lengths. The input is a description of a file, so that
// short inputs make files that get past the checksums:
//
//   1 byte    which checksums are made right: 1 prefix, 2 root, 4 pieces; 8: numbers of the prefix are the input's
//   2 bytes   of the header
//   2 bytes   of the data
//   1 byte    of the tail that is cut off the file, or added to it above 127
//   [32 bytes numbers of the prefix, with 8 above]
//   then the header, the data and, for pieces without right checksums, the table
//
// A file that is taken hands on exactly the bytes that its header describes, and none that the file does not have.
#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

#include "core/env.h"
#include "lowtide/error.h"
#include "optim/checkpoint_format.h"

namespace {

using namespace lowtide;

class Input {
 public:
  Input(const uint8_t* data, size_t size) : data_(data), size_(size) {}
  template <class T>
  T number() {
    T value{};
    const std::string_view bytes = take(sizeof value);
    std::memcpy(&value, bytes.data(), bytes.size());
    return value;
  }
  std::string_view take(size_t most) {
    const size_t bytes = std::min(most, size_);
    const std::string_view out(reinterpret_cast<const char*>(data_), bytes);
    data_ += bytes, size_ -= bytes;
    return out;
  }

 private:
  const uint8_t* data_;
  size_t size_;
};

// One file, in memory.
class OneFile final : public Env {
 public:
  explicit OneFile(const std::string& bytes) : bytes_(bytes) {}
  int open(const char*, int, unsigned) override { return 3; }
  int close(int) override { return 0; }
  int64_t pread(int, void* to, int64_t bytes, int64_t offset) override {
    if (offset < 0 || bytes < 0) return -EINVAL;
    const auto size = static_cast<int64_t>(bytes_.size());
    if (offset >= size) return 0;
    const int64_t got = std::min(bytes, size - offset);
    std::memcpy(to, bytes_.data() + offset, static_cast<size_t>(got));
    return got;
  }

 private:
  const std::string& bytes_;
};

void put(std::string* to, const void* value, size_t bytes) { to->append(static_cast<const char*>(value), bytes); }

std::string file_of(Input input) {
  const auto flags = input.number<uint8_t>();
  const auto header_bytes = input.number<uint16_t>(), data_bytes = input.number<uint16_t>();
  const auto tail = input.number<int8_t>();
  int64_t numbers[4];
  for (int64_t& number : numbers) number = flags & 8 ? input.number<int64_t>() : 0;
  const std::string_view header = input.take(header_bytes), data = input.take(data_bytes);

  checkpoint::Prefix prefix{checkpoint::kSmallestPiece, static_cast<int64_t>(header.size()),
                            static_cast<int64_t>(data.size()), 0};
  std::vector<uint64_t> table;
  // The pieces are those of the header's arrays where it describes the data, else those of one array.
  std::vector<int64_t> arrays{static_cast<int64_t>(data.size())};
  try {
    std::vector<int64_t> described;
    int64_t sum = 0;
    for (const checkpoint::Array& array : checkpoint::arrays_of(checkpoint::decode_header(header)))
      described.push_back(array.bytes), sum += array.bytes;
    if (sum == prefix.data_bytes) arrays = described;
  } catch (const Error&) {
  }
  int64_t at = 0;
  for (const int64_t bytes : arrays)
    for (int64_t done = 0; done < bytes; done += prefix.piece_bytes, ++prefix.pieces) {
      const int64_t piece = std::min(prefix.piece_bytes, bytes - done);
      const auto index = static_cast<int64_t>(table.size());
      table.push_back(flags & 4 ? checkpoint::piece_checksum(data.data() + at, piece, index)
                                : input.number<uint64_t>());
      at += piece;
    }
  if (flags & 8) prefix = {numbers[0], numbers[1], numbers[2], numbers[3]};

  std::string out = checkpoint::encode(prefix);
  if (!(flags & 1)) out.back() = static_cast<char>(out.back() ^ 1);
  out += header;
  out.resize((out.size() + checkpoint::kAlignment - 1) / checkpoint::kAlignment * checkpoint::kAlignment);
  const uint64_t root = checkpoint::root_checksum(out, table) ^ !(flags & 2);
  out += data;
  if (!table.empty()) put(&out, table.data(), table.size() * sizeof table[0]);
  put(&out, &root, sizeof root);
  const auto cut = static_cast<size_t>(std::max<int>(tail, 0));
  out.resize(tail < 0 ? out.size() + static_cast<size_t>(-tail) : out.size() - std::min(cut, out.size()));
  return out;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string bytes = file_of({data, size});
  OneFile env(bytes);
  try {
    const CheckpointFile file(env, "c");
    int64_t wanted = 0, got = 0;
    for (const checkpoint::Array& array : checkpoint::arrays_of(file.contents())) wanted += array.bytes;
    file.load([&](const StatePart& part, int64_t, const std::byte*, int64_t count) {
      if (part.param >= file.contents().params.size()) __builtin_trap();
      got += count;
    });
    if (got != wanted || got > static_cast<int64_t>(bytes.size())) __builtin_trap();
  } catch (const Error&) {
  }
  return 0;
}
