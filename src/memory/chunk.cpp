#include "memory/chunk.h"

#include <algorithm>
#include <cstring>

#include "core/buffer.h"
#include "core/layout.h"

namespace lowtide {

int64_t block_count(const StateShape& s) { return s.rows * blocks_per_row(s.row_length, kBlockElements); }

// Arrays that a step reads in parallel must not start at equal offsets within a page, because with large power-of-two
// sizes they would share cache sets and memory banks (fp32 AdamW, 64 Mi elements, one thread on Zen 4: 32 GB/s without
// the extra page and line, 54 GB/s with them).
int64_t lay_out(Piece& piece, int64_t at) {
  constexpr int64_t kLine = 64;
  const auto part = [&at](int64_t bytes) {
    const int64_t here = at;
    at += round_up(bytes, kLine) + (bytes >= 16 * kPageBytes ? kPageBytes + kLine : 0);
    return here;
  };
  for (int k = 0; k < piece.states; ++k) piece.codes_at[k] = part(piece.format[k].code_bytes(piece.elements));
  for (int k = 0; k < piece.states; ++k)
    if (piece.format[k].scales) piece.scales_at[k] = part(piece.format[k].scale_bytes(piece.blocks));
  return at;
}

Piece make_piece(const ShapedParam& param, int64_t first_block, int64_t blocks) {
  const StateShape& s = param.shape;
  Piece piece;
  piece.param = param.param;
  piece.first_block = first_block;
  piece.blocks = blocks;
  if (blocks > 0) {
    piece.first_element = elements_before_block(s.row_length, first_block, kBlockElements);
    piece.elements = elements_before_block(s.row_length, first_block + blocks, kBlockElements) - piece.first_element;
  }
  piece.states = s.states;
  std::copy(s.format, s.format + kMaxArrays, piece.format);
  return piece;
}

Piece whole_piece(const StateShape& shape) {
  Piece piece = make_piece({0, shape}, 0, block_count(shape));
  lay_out(piece, 0);
  return piece;
}

int64_t record_bytes(const StateShape& shape) {
  Piece piece = whole_piece(shape);
  return lay_out(piece, 0);
}

std::vector<Chunk> cut_chunks(std::span<const ShapedParam> params, int64_t chunk_bytes) {
  std::vector<Chunk> chunks;
  int64_t used = 0;  // bytes used in the last chunk
  const auto close = [&] {
    if (!chunks.empty()) chunks.back().bytes = round_up(used, kPageBytes);
  };
  for (const ShapedParam& param : params) {
    const int64_t total = block_count(param.shape);
    size_t number = 0;
    for (int64_t done = 0; done < total;) {
      const bool fresh = chunks.empty() || used == 0;
      // Find the largest number of blocks that fit by bisection: more blocks take more bytes, but not in proportion.
      int64_t fit = 0, beyond = total - done + 1;
      while (beyond - fit > 1) {
        const int64_t middle = fit + (beyond - fit) / 2;
        Piece trial = make_piece(param, done, middle);
        (lay_out(trial, fresh ? 0 : used) <= chunk_bytes ? fit : beyond) = middle;
      }
      if (fit == 0 && !fresh) {  // begin a new chunk
        close();
        used = 0;
        continue;
      }
      if (fresh) chunks.emplace_back();
      Piece piece = make_piece(param, done, std::max<int64_t>(fit, 1));
      piece.number = number++;
      used = lay_out(piece, fresh ? 0 : used);
      chunks.back().pieces.push_back(piece);
      done += piece.blocks;
    }
  }
  close();
  return chunks;
}

void fill_zero(const Piece& piece, std::byte* zeroed) {
  for (int k = 0; k < piece.states; ++k)
    if (const StateFormat& format = piece.format[k]; format.zero)
      std::memset(zeroed + piece.codes_at[k], format.zero, static_cast<size_t>(format.code_bytes(piece.elements)));
}

void fill_zero(const Chunk& chunk, std::byte* memory) {
  std::memset(memory, 0, static_cast<size_t>(chunk.bytes));
  for (const Piece& piece : chunk.pieces) fill_zero(piece, memory);
}

}  // namespace lowtide
