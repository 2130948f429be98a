// A parameter as the optimizer keeps it: where it is, how it is laid out, and its state.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "backend/backend.h"
#include "lowtide/optimizer.h"
#include "memory/arena.h"
#include "memory/chunk.h"

namespace lowtide {

// How far a piece of a parameter has come. Pieces differ only after a step that a failing disk stopped half way.
struct Progress {
  int64_t behind = 0;  // steps of the parameter that the piece has missed
  bool fresh = false;
  bool done = false;  // within a step
};

constexpr uint32_t kAllStates = (uint32_t{1} << kMaxArrays) - 1;

// Of a parameter, and in all: no sum of the bytes of their states overflows.
constexpr int64_t kMostElements = int64_t{1} << 52;

struct Slot {
  int group = 0;
  int rule = 0;    // the effective rule: SGD without momentum steps as sgd_plain
  int codec = 0;   // as decided at registration: small parameters keep float32
  int master = 0;  // of masters.def: weights of 16 bits alone have one
  void* data = nullptr;
  DType dtype = DType::kF32;
  std::vector<int64_t> sizes;
  Layout layout;
  ShardOrigin origin;
  Layout grad_layout;                 // of the last gradient, kept for its memory
  Layout direction_layout;            // contiguous; made with the first step that is given directions
  std::vector<int64_t> grad_strides;  // for which grad_layout was made; empty = contiguous
  int64_t steps = 0;
  bool has_state = false;
  int state_rule = 0;              // whose states are allocated; SGD keeps its buffer while momentum is 0
  bool fresh = false;              // the state holds nothing yet: no step, and nothing was restored into it
  bool wants_state = false;        // before its first gradient, with the others of its budget
  bool paged = false;              // the state is in its budget's store; codes and scales are null
  std::vector<Progress> progress;  // of each piece, where paged
  uint32_t torn = 0;               // bit k: state k was being replaced when something failed; part of it is of before
  void* codes[kMaxArrays] = {};
  float* scales[kMaxArrays] = {};

  // What is stored beside the parameter: the states of a rule, and behind them the residual of its weights, if any.
  bool has_residual() const;
  bool norms_read_arrays() const;  // whether norms of its rule, if any, need some of that
  int arrays(int of_rule) const;
  StateFormat format(int of_rule, int k) const;      // of array k
  const char* array_name(int of_rule, int k) const;  // "exp_avg", ..., "residual"
  StateShape shape_of(int of_rule) const;
  Piece whole_piece(int of_rule) const;     // all of it in one piece, not laid out
  int64_t record_bytes(int of_rule) const;  // what allocate_state takes from the arena
  int64_t bytes_of(int of_rule) const;      // codes and scales of all states of a rule
  int64_t state_bytes() const;              // of those that it has
  void set_fresh(bool now);
  // Allocates the states of `of_rule`, each decoding to zero. Throws kOutOfMemory and changes nothing.
  void allocate_state(Arena& arena, int of_rule);
};

// The codec of a parameter: `wanted`, unless the parameter is smaller than `min_numel`, the codec would not save memory
// (rows of one element need a scale each), or it has blocks and shards cut them; codes of 4 bits become dynamic8 where
// rows are of an odd length, and so no whole bytes. Decided by the `whole` of which a
// parameter of `sizes` is a shard, so that all shards of it decide alike. Throws
// kInvalidArgument if it can be none, or has more than kMostElements.
// A shard that is cut within the dims behind a row's first has float32 state too: its elements are in several places of
// a row.
int codec_for(int wanted, std::span<const int64_t> sizes, const std::optional<WholeParam>& whole, int64_t min_numel);

// Where a shard of `sizes` lies in `whole`, which codec_for has accepted.
ShardOrigin origin_of(std::span<const int64_t> sizes, const WholeParam& whole);
// The kind of master (masters.def) of a parameter: `wanted`, for weights of 16 bits.
int master_for(int wanted, DType dtype);

}  // namespace lowtide
