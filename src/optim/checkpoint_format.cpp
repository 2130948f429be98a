#include "optim/checkpoint_format.h"

#include <bit>
#include <cstring>
#include <unordered_set>

#include "core/error.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

namespace lowtide::checkpoint {
namespace {

static_assert(std::endian::native == std::endian::little, "the file is little-endian and is written from memory");

// \r\n and \x1a reveal at once that a text-mode transfer has changed the file.
constexpr char kMagic[] = "\x89LTCK\r\n\x1a";

void put(std::string* to, const void* value, size_t bytes) { to->append(static_cast<const char*>(value), bytes); }

uint64_t get(std::string_view bytes, size_t offset) {
  uint64_t value;
  std::memcpy(&value, bytes.data() + offset, sizeof value);
  return value;
}

void check_name(const char* what, const std::string& name) {
  LT_REQUIRE(!name.empty() && name.size() <= kMostNameBytes, "the name of a %s has %zu bytes; wanted 1 to %zu", what,
             name.size(), kMostNameBytes);
}

// The product of all sizes from `first` on; 0 if any is 0.
int64_t product(const CheckpointParam& param, size_t first) {
  int64_t result = 1;
  bool empty = false;
  for (size_t i = first; i < param.sizes.size(); ++i) {
    const int64_t size = param.sizes[i];
    LT_REQUIRE(size >= 0, "size %lld of parameter '%.100s' is negative", ll(size), param.name.c_str());
    if (size == 0) {
      empty = true;
    } else {
      LT_REQUIRE(result <= kMostBytes / size, "parameter '%.100s' has more than 2^60 elements", param.name.c_str());
      result *= size;
    }
  }
  return empty ? 0 : result;
}

// True for whole bytes per element, and for 1, 2 or 4 bits per element in rows that start at a byte.
bool codes_fit(int64_t bytes, int64_t rows, int64_t row) {
  if (rows == 0 || row == 0) return bytes == 0;
  for (const int width : {1, 2, 4, 8}) {
    if (bytes % width == 0 && bytes / width == rows * row) return true;
  }
  for (const int bits : {1, 2, 4}) {
    const int per_byte = 8 / bits;
    if (bytes == rows * ((row - 1) / per_byte + 1)) return true;
  }
  return false;
}

void check_state(const CheckpointParam& param, const CheckpointState& state, int64_t numel) {
  check_name("state", state.name);
  const char *of = param.name.c_str(), *name = state.name.c_str();
  const int64_t rows = param.sizes.size() < 2 ? 1 : param.sizes[0], row = numel ? numel / rows : 0;
  LT_REQUIRE(
      codes_fit(state.code_bytes, rows, row),
      "state '%.100s' of parameter '%.100s' has %lld bytes of codes for %lld rows of %lld elements; wanted 1, 2, "
      "4 or 8 bytes or 1, 2 or 4 bits per element",
      name, of, ll(state.code_bytes), ll(rows), ll(row));
  const int64_t blocks = param.block && row ? rows * ((row - 1) / param.block + 1) : 0;
  // A residual has no scales, even beside states that do. 4-bit codes have one scale per half block.
  const int64_t of_block = row > 1 && state.code_bytes == rows * ((row - 1) / 2 + 1) ? 2 : 1;
  const int64_t wanted = state.name == kResidual ? 0 : 4 * of_block * blocks;
  LT_REQUIRE(state.scale_bytes == wanted,
             "state '%.100s' of parameter '%.100s' has %lld bytes of scales for %lld blocks; wanted %lld", name, of,
             ll(state.scale_bytes), ll(blocks), ll(wanted));
}

void check_param(const CheckpointParam& param) {
  check_name("parameter", param.name);
  const char* name = param.name.c_str();
  LT_REQUIRE(param.sizes.size() <= kMostSizes, "parameter '%.100s' has %zu dims; wanted at most %zu", name,
             param.sizes.size(), kMostSizes);
  LT_REQUIRE(param.states.size() <= kMostStates, "parameter '%.100s' has %zu states; wanted at most %zu", name,
             param.states.size(), kMostStates);
  LT_REQUIRE(param.carried.size() <= kMostCarried, "parameter '%.100s' carries %zu numbers; wanted at most %zu", name,
             param.carried.size(), kMostCarried);
  LT_REQUIRE(param.group >= 0 && param.steps >= 0 && param.block >= 0,
             "parameter '%.100s' has group=%d, steps=%lld, block=%d; wanted no negative number", name, param.group,
             ll(param.steps), param.block);
  LT_REQUIRE(param.codec.size() <= kMostNameBytes, "the codec of parameter '%.100s' has a name of %zu bytes", name,
             param.codec.size());
  const int64_t numel = product(param, 0);
  for (size_t k = 0; k < param.states.size(); ++k) {
    check_state(param, param.states[k], numel);
    for (size_t j = 0; j < k; ++j) {
      LT_REQUIRE(param.states[j].name != param.states[k].name, "parameter '%.100s' has two states named '%.100s'", name,
                 param.states[k].name.c_str());
    }
  }
}

}  // namespace

std::string encode(const Prefix& prefix) {
  std::string out(kMagic, 8);
  const uint32_t words[] = {kVersion, static_cast<uint32_t>(prefix.piece_bytes)};
  put(&out, words, sizeof words);
  const int64_t counts[] = {prefix.header_bytes, prefix.data_bytes, prefix.pieces, prefix.file_bytes(), 0};
  put(&out, counts, sizeof counts);
  const uint64_t sum = XXH3_64bits(out.data(), out.size());
  put(&out, &sum, sizeof sum);
  return out;
}

Prefix decode_prefix(std::string_view bytes) {
  LT_REQUIRE(bytes.size() >= 8 && std::memcmp(bytes.data(), kMagic, 8) == 0, "not a checkpoint of Lowtide");
  LT_REQUIRE(bytes.size() == kPrefixBytes, "truncated: %zu bytes", bytes.size());
  const uint32_t version = static_cast<uint32_t>(get(bytes, 8));
  LT_REQUIRE(
      version == kVersion, "format version %u; this version of Lowtide reads version %u: %s", version, kVersion,
      version < kVersion ? "load the file in the build that wrote it, and save state_dict() there" : "update Lowtide");
  LT_REQUIRE(get(bytes, 56) == XXH3_64bits(bytes.data(), 56), "garbled: the checksum of the first 64 bytes is wrong");
  // Even with a correct checksum, a faulty writer must not make the reader overallocate or overflow.
  const uint64_t piece = get(bytes, 8) >> 32;
  LT_REQUIRE(std::has_single_bit(piece) && piece >= kSmallestPiece && piece <= kLargestPiece,
             "pieces of %llu bytes; wanted a power of two from %lld to %lld", static_cast<unsigned long long>(piece),
             ll(kSmallestPiece), ll(kLargestPiece));
  const uint64_t header = get(bytes, 16), data = get(bytes, 24), pieces = get(bytes, 32);
  LT_REQUIRE(header <= kMostHeaderBytes, "a header of %llu bytes; wanted at most %lld",
             static_cast<unsigned long long>(header), ll(kMostHeaderBytes));
  // Every piece holds at least one byte.
  LT_REQUIRE(data <= kMostBytes && pieces <= data && pieces <= kMostBytes / 8 && pieces >= (data + piece - 1) / piece,
             "%llu pieces of %llu bytes for %llu bytes of data", static_cast<unsigned long long>(pieces),
             static_cast<unsigned long long>(piece), static_cast<unsigned long long>(data));
  const Prefix prefix{static_cast<int64_t>(piece), static_cast<int64_t>(header), static_cast<int64_t>(data),
                      static_cast<int64_t>(pieces)};
  LT_REQUIRE(get(bytes, 40) == static_cast<uint64_t>(prefix.file_bytes()) && get(bytes, 48) == 0,
             "the sizes in its first 64 bytes contradict each other");
  return prefix;
}

std::vector<Array> arrays_of(const Checkpoint& checkpoint) {
  check_name("rule", checkpoint.rule);
  std::vector<Array> arrays;
  std::unordered_set<std::string_view> names;
  int64_t offset = 0;
  for (size_t i = 0; i < checkpoint.params.size(); ++i) {
    const CheckpointParam& param = checkpoint.params[i];
    check_param(param);
    LT_REQUIRE(names.insert(param.name).second, "two parameters are named '%.100s'", param.name.c_str());
    for (size_t k = 0; k < param.states.size(); ++k) {
      for (const bool scales : {false, true}) {
        const int64_t bytes = scales ? param.states[k].scale_bytes : param.states[k].code_bytes;
        LT_REQUIRE(bytes <= kMostBytes - offset, "more than 2^60 bytes of state");
        if (bytes) arrays.push_back({{i, k, scales}, offset, bytes});
        offset += bytes;
      }
    }
  }
  return arrays;
}

uint64_t piece_checksum(const void* data, int64_t bytes, int64_t index) {
  return XXH3_64bits_withSeed(data, static_cast<size_t>(bytes), static_cast<XXH64_hash_t>(index));
}

uint64_t root_checksum(std::string_view head, const std::vector<uint64_t>& table) {
  XXH3_state_t state;
  XXH3_64bits_reset(&state);
  XXH3_64bits_update(&state, head.data(), head.size());
  if (!table.empty()) XXH3_64bits_update(&state, table.data(), table.size() * 8);
  return XXH3_64bits_digest(&state);
}

}  // namespace lowtide::checkpoint
