// Durable checkpoints: one file, written beside its final name, synced and renamed, so that the name always holds a
// whole old or a whole new checkpoint. docs/project/checkpoint-format.md describes the format; tools/read_checkpoint.py
// reads it independently. Streams to and from wherever state lives: memory for two pieces, never a second copy.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "core/env.h"

namespace lowtide {

// The state that holds the bits that 16-bit weights lack.
inline constexpr const char* kResidual = "residual";

struct CheckpointState {
  std::string name;  // "exp_avg"
  bool is_signed = true;
  int64_t code_bytes = 0;   // all codes of the parameter, row-major
  int64_t scale_bytes = 0;  // all its scales, 0 if the codec has none
};

struct CheckpointParam {
  std::string name;            // "0", "1", ... or the caller's name; unique
  std::vector<int64_t> sizes;  // the parameter's
  int group = 0;
  int64_t steps = 0;
  std::string codec;                    // "dynamic8"; blocks of `block` within rows of dim 0
  int block = 0;                        // 0 if the codec has no scales
  std::vector<CheckpointState> states;  // empty: no state yet
  std::vector<double> carried;          // the numbers that its rule carries (optim/carried.h), as they are
};

struct Checkpoint {
  std::string rule;      // "adamw"
  std::string metadata;  // the caller's own text (Python: JSON of the param groups); may be empty
  std::vector<CheckpointParam> params;
};

// Moves bytes [offset, offset + bytes) of a state's codes or scales. May throw any exception.
struct StatePart {
  size_t param;
  size_t state;
  bool scales;  // false: codes
};
using StateReader = std::function<void(const StatePart&, int64_t offset, std::byte* to, int64_t bytes)>;
using StateWriter = std::function<void(const StatePart&, int64_t offset, const std::byte* from, int64_t bytes)>;

// Writes `path`. On any error a file that existed before is untouched and nothing is left behind; with one exception,
// which its message names: if only the last call fails, the sync of the directory, `path` already holds the whole new
// checkpoint. A killed process may leave `<path>.tmp-<pid>-<random>`: the next save to this path removes it. Throws
// kInvalidArgument (a value that does not belong in a checkpoint) or kIo, or exceptions of `read`.
void save_checkpoint(Env& env, const std::string& path, const Checkpoint& checkpoint, const StateReader& read);

// Opens a checkpoint: validates header, sizes and root against the file before allocating anything by them. Throws kIo
// (the system refused) or kInvalidArgument (not a checkpoint, truncated, garbled, from a newer version).
class CheckpointFile {
 public:
  CheckpointFile(Env& env, const std::string& path);
  ~CheckpointFile();
  CheckpointFile(const CheckpointFile&) = delete;
  CheckpointFile& operator=(const CheckpointFile&) = delete;

  const Checkpoint& contents() const { return contents_; }
  // Passes all state on, piece by piece, in file order; each piece's checksum is checked first.
  void load(const StateWriter& write) const;

 private:
  struct File;  // the descriptor and the layout

  std::string path_;
  Checkpoint contents_;
  std::unique_ptr<File> file_;
};

}  // namespace lowtide
