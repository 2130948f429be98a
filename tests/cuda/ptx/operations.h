// The table of operations, by their whole name with types and suffixes.
#pragma once

#include <string>
#include <string_view>
#include <unordered_map>

#include "program.h"

namespace ptx {

struct Operation {
  Handler run = nullptr;
  Meeting meet = nullptr;
  // A letter for each operand: p a predicate, h 16 bits, w 32, d 64; x any width; destinations first.
  std::string operands;
};

using Operations = std::unordered_map<std::string, Operation>;

void add_integers(Operations& all);
void add_bits(Operations& all);
void add_floats(Operations& all);
void add_doubles(Operations& all);
void add_comparisons(Operations& all);
void add_approximations(Operations& all);
void add_conversions(Operations& all);
void add_meetings(Operations& all);

const Operations& operations();

// Loads, stores and atomics of memory: their spaces and types are in their instructions.
Handler load_handler(uint32_t bytes, bool is_signed, bool wide);
Handler store_handler(uint32_t bytes, bool wide);
// op: "or", "min.u32" and so on; nullptr: unknown. d is sent back.
Handler atomic_handler(std::string_view op);

}  // namespace ptx
