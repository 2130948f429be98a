// A kernel, decoded: instructions with numbered registers, the functions that it calls behind its own.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "source.h"

namespace ptx {

inline constexpr uint32_t kWarp = 32, kAllLanes = 0xffffffffu;
// Addresses of shared and local memory begin here, so that 0 is none.
inline constexpr uint32_t kFirstShared = 1024, kFirstLocal = 256;

class Warp;
struct Instruction;

// Does it for the lanes of the mask.
using Handler = void (*)(Warp&, const Instruction&, uint32_t mask);
// Does it for lanes that have met, each at an instruction of its own.
using Meeting = void (*)(Warp&, const Instruction* const* of_lane, uint32_t mask);

enum class Flow : uint8_t { kPlain, kBranch, kCall, kReturn, kMeeting, kBlockBarrier };
enum class Space : uint8_t { kGlobal, kShared, kLocal, kParam };

struct Instruction {
  Handler run = nullptr;
  Meeting meet = nullptr;
  // Registers as numbers of 32 words: destinations, then sources. Negative: a constant, ~number.
  std::array<int32_t, 8> x{};
  int64_t offset = 0;   // of an address
  int32_t guard = -1;   // a predicate register
  uint32_t target = 0;  // instruction of a branch or call
  uint32_t line = 0;
  uint16_t name = 0;  // number in Names
  Flow flow = Flow::kPlain;
  Space space = Space::kGlobal;
  uint8_t count = 1, bytes = 0;  // of a vector, and of each element
  bool negated = false;          // the guard
  bool source_negated = false;   // the predicate that is read
  bool wide_address = false;     // of 64 bits
  mutable bool seen = false;     // it has run
};

// The names of all instructions that have been decoded in the process: "add.s32".
class Names {
 public:
  static uint16_t number(const std::string& name);
  static const std::string& text(uint16_t number);
};

// A register whose value is the same in all lanes when a warp begins.
struct Constant {
  uint64_t value;
  bool wide;
};

struct Program {
  std::string name;  // of the kernel
  std::string file;
  std::vector<Instruction> code;
  std::vector<uint32_t> constants;  // 32 words each, wide ones 64
  uint32_t registers = 0;           // of 32 words
  std::vector<Variable> parameters;
  std::vector<uint32_t> parameter_offsets;
  uint32_t parameter_bytes = 0, local_bytes = 0;
  std::vector<Variable> shared;
  std::vector<uint32_t> shared_addresses;
  uint32_t shared_end = kFirstShared;
  mutable uint64_t launches = 0;
};

// Registers with values at the beginning, in this order.
enum SpecialRegister : int32_t {
  kThread,
  kThreads,
  kBlock,
  kBlocks,
  kLane,
  kSink,
  kSinkWide,
  kSpecial = kSinkWide + 2
};

// Throws Error: names what it does not know.
std::unique_ptr<Program> decode(const Source& source, const Function& entry);

}  // namespace ptx
