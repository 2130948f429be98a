// Memory of the emulated machine: a range of addresses for each device, which the host can reach only while something
// runs there, and a table of all that is allocated or registered.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>

namespace cuda_emulator {

struct Range {
  const std::byte* begin = nullptr;
  size_t bytes = 0;
  bool meets(const Range& other) const {
    return bytes && other.bytes && begin < other.begin + other.bytes && other.begin < begin + bytes;
  }
};

enum class Place { kPageable, kRegistered, kHostAllocated, kDevice, kManaged };

struct Block {
  size_t bytes = 0;
  Place place = Place::kPageable;
  int device = 0;
  std::byte* begin = nullptr;
};
using Blocks = std::map<uintptr_t, Block>;

inline bool is_pinned(const Block& block) {
  return block.place == Place::kRegistered || block.place == Place::kHostAllocated;
}

// The block that holds the address; nullptr: none does.
const Block* find_block(const Blocks& blocks, const void* address);
// Where [memory, memory + bytes) is. false: partly here and partly there.
bool locate(const Blocks& blocks, const void* memory, size_t bytes, Block& out);

class Arena {
 public:
  explicit Arena(size_t capacity);
  ~Arena();
  Arena(const Arena&) = delete;

  // nullptr: no memory. Filled with kPoison, as is the edge behind it.
  std::byte* allocate(size_t bytes);
  // false: something wrote behind it.
  bool free(std::byte* memory, size_t bytes);
  bool edge_is_whole(const std::byte* memory, size_t bytes) const;
  void open();
  void close();
  size_t used() const { return used_; }
  size_t capacity() const { return capacity_; }
  void set_capacity(size_t bytes) { capacity_ = bytes; }

  static constexpr unsigned char kPoison = 0xc5;

 private:
  size_t find_gap(size_t bytes);

  size_t capacity_, used_ = 0, next_ = 0;
  std::byte* base_ = nullptr;
  bool is_open_ = false;
  std::map<size_t, size_t> live_;  // first byte and last of each allocation, whole pages
};

}  // namespace cuda_emulator
