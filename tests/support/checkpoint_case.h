// Checkpoints for tests: random ones with their bytes, contents of files, and files with any header and right
// checksums.
#pragma once

#include <unistd.h>

#include <bit>

#include "optim/checkpoint_format.h"
#include "support/test.h"

namespace lowtide::testing {

constexpr int64_t kSmallPiece = checkpoint::kSmallestPiece;

inline std::string read_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

inline void write_file(const std::string& path, const std::string& bytes) {
  std::filesystem::remove(path);  // some file systems flush a file that was truncated and rewritten
  std::ofstream file(path, std::ios::binary);
  file.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  if (!file.flush()) throw std::runtime_error("could not write " + path);
}

// A checkpoint and its state.
struct Content {
  Checkpoint description;
  std::map<std::array<size_t, 3>, std::string> arrays;  // by parameter, state, scales

  static std::array<size_t, 3> key(const StatePart& part) { return {part.param, part.state, part.scales}; }

  StateReader reader() const {
    return [this](const StatePart& part, int64_t offset, std::byte* to, int64_t bytes) {
      std::memcpy(to, arrays.at(key(part)).data() + offset, static_cast<size_t>(bytes));
    };
  }
  void save(const std::string& path, int64_t piece = kSmallPiece, Env& env = system_env()) const {
    checkpoint::save(env, path, description, reader(), piece);
  }
  void fill(Rng& rng) {
    for (const checkpoint::Array& array : checkpoint::arrays_of(description)) {
      std::string& bytes = arrays[key(array.part)];
      bytes.resize(static_cast<size_t>(array.bytes));
      for (char& byte : bytes) byte = static_cast<char>(rng.next());
    }
  }
};

// Loads everything that the file holds.
inline Content load(const std::string& path, Env& env = system_env()) {
  const CheckpointFile file(env, path);
  Content content{file.contents(), {}};
  file.load([&](const StatePart& part, int64_t offset, const std::byte* from, int64_t bytes) {
    std::string& to = content.arrays[Content::key(part)];
    EXPECT_EQ(static_cast<int64_t>(to.size()), offset) << "out of order";
    to.append(reinterpret_cast<const char*>(from), static_cast<size_t>(bytes));
  });
  return content;
}

inline bool same(const Content& a, const Content& b) {
  const auto as_bits = [](double number) { return std::bit_cast<uint64_t>(number); };
  const Checkpoint &x = a.description, &y = b.description;
  return a.arrays == b.arrays && x.rule == y.rule && x.metadata == y.metadata &&
         std::equal(x.params.begin(), x.params.end(), y.params.begin(), y.params.end(),
                    [&](const CheckpointParam& p, const CheckpointParam& q) {
                      return p.name == q.name && p.sizes == q.sizes && p.group == q.group && p.steps == q.steps &&
                             p.codec == q.codec && p.block == q.block &&
                             std::ranges::equal(p.carried, q.carried, {}, as_bits, as_bits) &&
                             std::equal(p.states.begin(), p.states.end(), q.states.begin(), q.states.end(),
                                        [](const CheckpointState& s, const CheckpointState& t) {
                                          return s.name == t.name && s.is_signed == t.is_signed &&
                                                 s.code_bytes == t.code_bytes && s.scale_bytes == t.scale_bytes;
                                        });
                    });
}

// Returns a parameter whose sizes fit its state of `code_bytes` per element, with one float scale per block.
inline CheckpointParam param_of(std::string name, std::vector<int64_t> sizes, int states, int64_t code_bytes,
                                int block) {
  CheckpointParam param;
  param.name = std::move(name);
  int64_t numel = 1;
  for (const int64_t size : sizes) numel *= size;
  const int64_t rows = sizes.size() < 2 ? 1 : sizes[0];
  const int64_t blocks = block && numel ? rows * ((numel / rows + block - 1) / block) : 0;
  param.sizes = std::move(sizes);
  param.codec = block ? "dynamic8" : code_bytes == 4 ? "fp32" : "bf16";
  param.block = block;
  for (int k = 0; k < states; ++k)
    param.states.push_back({k ? "exp_avg_sq" : "exp_avg", k == 0, numel * code_bytes, blocks * 4});
  return param;
}

inline Content random_content(Rng& rng, int64_t most_params, int64_t most_size) {
  static const std::string kNames[] = {"0",          "layer.weight",        "\xce\xb2\xe2\x82\x82", "\xf0\x9f\x8c\x8a",
                                       "\"\\\n\x01", std::string("a\0b", 3)};
  Content content;
  content.description.rule = rng.chance(0.5) ? "adamw" : "lion";
  if (rng.chance(0.7)) content.description.metadata = "{\"lr\": 0.1, \"\xc3\xa4\": \"" + kNames[3] + "\"}";
  const int64_t params = rng.below(most_params + 1);
  for (int64_t i = 0; i < params; ++i) {
    std::vector<int64_t> sizes(static_cast<size_t>(rng.below(4)));
    for (int64_t& size : sizes) size = rng.chance(0.1) ? 0 : rng.between(1, most_size);
    const bool scaled = rng.chance(0.5);
    CheckpointParam param = param_of(kNames[rng.below(6)] + std::to_string(i), sizes, static_cast<int>(rng.below(3)),
                                     scaled            ? 1
                                     : rng.chance(0.5) ? 4
                                                       : 2,
                                     scaled ? 1 << rng.between(0, 8) : 0);
    param.group = static_cast<int>(rng.below(3));
    param.steps = static_cast<int64_t>(rng.next() >> rng.between(1, 63));
    for (int64_t n = rng.below(4); n > 0; --n) param.carried.push_back(rng.normal() * 1e300);
    content.description.params.push_back(param);
  }
  content.fill(rng);
  return content;
}

// Returns small contents: three arrays of several pieces each.
inline Content small_content(uint64_t seed) {
  Rng rng(seed);
  Content content;
  content.description.rule = "adamw";
  content.description.metadata = "groups";
  content.description.params = {param_of("weight", {3, 3000}, 2, 1, 256), param_of("bias", {7}, 1, 4, 0)};
  content.description.params[0].carried = {0.25, -0.0};
  content.fill(rng);
  return content;
}

// Returns a file with any header text and correct checksums, which the reader can refuse only for its header.
inline std::string forge(const std::string& header, const std::string& data, const std::vector<uint64_t>& table,
                         int64_t piece_bytes = kSmallPiece) {
  const checkpoint::Prefix prefix{piece_bytes, static_cast<int64_t>(header.size()), static_cast<int64_t>(data.size()),
                                  static_cast<int64_t>(table.size())};
  std::string file = checkpoint::encode(prefix) + header;
  file.resize(static_cast<size_t>(prefix.data_offset()), '\0');
  const uint64_t root = checkpoint::root_checksum(file, table);
  file += data;
  file.append(reinterpret_cast<const char*>(table.data()), table.size() * 8);
  file.append(reinterpret_cast<const char*>(&root), 8);
  return file;
}

}  // namespace lowtide::testing
