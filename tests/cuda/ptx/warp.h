// A warp: registers of 32 lanes, and what its instructions reach.
#pragma once

#include <bit>
#include <cstring>
#include <utility>

#include "launch.h"
#include "program.h"

namespace ptx {

// Registers of 64 bits have words of their own; predicates are the first word's bits.
template <class T>
using Word = std::conditional_t<sizeof(T) == 8, uint64_t, uint32_t>;

template <class T>
T from_word(Word<T> word) {
  if constexpr (std::is_floating_point_v<T>)
    return std::bit_cast<T>(word);
  else
    return static_cast<T>(word);
}
template <class T>
Word<T> to_word(T value) {
  if constexpr (std::is_floating_point_v<T>)
    return std::bit_cast<Word<T>>(value);
  else
    return static_cast<std::make_unsigned_t<T>>(value);
}

class Warp {
 public:
  // Lanes of one PC that run together.
  struct Group {
    uint32_t pc, mask;
  };
  // Lanes that wait for others.
  struct Wait {
    const Instruction* first;
    uint32_t mask, arrived;
  };

  void begin(Team& team, uint32_t number, uint32_t lanes);
  // Until all lanes have ended or wait at the block's barrier.
  void run();
  bool has_ended() const { return ended_ == exist_; }
  bool is_at_barrier() const { return at_barrier_ != 0; }
  void leave_barrier();

  template <class T>
  const Word<T>* source(int32_t x) const {
    const uint32_t* words =
        x < 0 ? constants_ + size_t{kWarp} * static_cast<uint32_t>(~x) : registers_.data() + kWarp * x;
    return reinterpret_cast<const Word<T>*>(words);
  }
  template <class T>
  Word<T>* destination(int32_t x) {
    return reinterpret_cast<Word<T>*>(registers_.data() + kWarp * x);
  }
  uint32_t predicate(int32_t x) const { return source<uint32_t>(x)[0]; }
  void set_predicate(int32_t x, uint32_t mask, uint32_t bits) {
    uint32_t& word = registers_[kWarp * static_cast<size_t>(x)];
    word = (word & ~mask) | (bits & mask);
  }
  [[noreturn]] void fail(uint32_t lane, const std::string& what, bool address = false) const;

  Team& team() { return *team_; }
  std::byte* local(uint32_t lane) { return local_.data() + lane * size_t{local_bytes_}; }
  std::byte* local_written(uint32_t lane) { return local_written_.data() + lane * size_t{local_bytes_}; }
  uint32_t local_bytes() const { return local_bytes_; }
  uint32_t first_thread() const { return first_thread_; }
  // When each lane last met the others, by what it knows: an access of lane b at clock c is before what lane a does
  // now if known(a, b) >= c.
  uint32_t clock(uint32_t lane) const { return clock_[lane]; }
  uint32_t known(uint32_t lane, uint32_t of) const { return known_[lane][of]; }
  void synchronize(uint32_t mask);

 private:
  bool pick(Group& group);
  void run_group(Group group);
  void arrive(const Instruction& at, uint32_t pc, uint32_t mask);
  void arrive_with(const Instruction& at, uint32_t pc, uint32_t lanes, uint32_t mask);
  void call_or_return(const Instruction& at, uint32_t pc, uint32_t mask);
  void complete(const Wait& wait);
  void add_group(uint32_t pc, uint32_t mask);
  std::string stuck() const;

  Team* team_ = nullptr;
  const uint32_t* constants_ = nullptr;
  std::vector<uint32_t> registers_;
  std::vector<std::byte> local_, local_written_;
  uint32_t local_bytes_ = 0, first_thread_ = 0, exist_ = 0, ended_ = 0, at_barrier_ = 0, barrier_pc_ = 0;
  std::vector<Group> groups_;
  std::vector<Wait> waits_;
  uint32_t pc_[kWarp] = {};  // of lanes that wait
  std::vector<uint32_t> stack_[kWarp];
  uint32_t clock_[kWarp] = {}, known_[kWarp][kWarp] = {};
  const Instruction* now_ = nullptr;
};

}  // namespace ptx
