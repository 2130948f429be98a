// Chunks are contiguous records of state, and the unit of residency, transfers and checksums. A chunk holds, as pieces,
// the state of one or more parameters or a slice of a large parameter's state:
//   [codes of state 0 | codes of state 1 | ... | scales of state 0 | ...] for each piece, parts aligned to 64 bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "backend/catalog.h"

namespace lowtide {

// The shape of a parameter's state, without its position.
struct StateShape {
  int64_t rows = 0, row_length = 0;
  int states = 0;                  // number of arrays: the rule's states and, if there is one, the weight's residual
  StateFormat format[kMaxArrays];  // the format of each array
};

// Consecutive blocks of one parameter.
struct Piece {
  int64_t param = 0;  // number assigned by the caller
  size_t number = 0;  // index among the parameter's pieces
  int64_t first_block = 0, blocks = 0;
  int64_t first_element = 0, elements = 0;
  int64_t codes_at[kMaxArrays] = {};   // byte offsets within the chunk
  int64_t scales_at[kMaxArrays] = {};  // unused without scales
  int states = 0;
  StateFormat format[kMaxArrays];
};

struct Chunk {
  int64_t bytes = 0;  // multiple of kPageBytes
  std::vector<Piece> pieces;
};

struct ShapedParam {
  int64_t param = 0;
  StateShape shape;
};

// A chunk at the place where it is stepped. A step reads the record at `memory` and writes changes `write_offset` bytes
// after the bytes that it read.
struct PlacedChunk {
  std::span<const Piece> pieces;
  std::byte* memory = nullptr;
  int64_t write_offset = 0;
};
// Steps or reads the pieces of these chunks, either at once or queued on the step's stream.
using ChunkWork = std::function<void(std::span<const PlacedChunk> chunks)>;

int64_t block_count(const StateShape& shape);
// Returns a piece with blocks [first_block, first_block + blocks) of a parameter, not yet laid out.
Piece make_piece(const ShapedParam& param, int64_t first_block, int64_t blocks);
// Return a whole parameter as one piece, laid out from byte 0, and the size of that piece in bytes.
Piece whole_piece(const StateShape& shape);
int64_t record_bytes(const StateShape& shape);
// Lays out the piece's parts from byte `at` of a record and returns the end; both are multiples of 64.
int64_t lay_out(Piece& piece, int64_t at);

// Cuts the states of `params`, in this order, into chunks of about `chunk_bytes`. A chunk is larger only if a single
// block needs more. Every block of every parameter is in exactly one piece.
std::vector<Chunk> cut_chunks(std::span<const ShapedParam> params, int64_t chunk_bytes);

// Fill a piece in zeroed memory, or a whole chunk, with states that decode to zero.
void fill_zero(const Piece& piece, std::byte* zeroed);
void fill_zero(const Chunk& chunk, std::byte* memory);

}  // namespace lowtide
