#include "memory/chunk.h"

#include <algorithm>
#include <cstring>

#include "core/layout.h"

namespace lowtide {
namespace {

constexpr int64_t kLine = 64, kPage = 4096;

int64_t round_up(int64_t n, int64_t to) { return (n + to - 1) / to * to; }

int64_t block_count(const StateShape& s) {
  return s.row_length ? s.rows * ((s.row_length + kBlockElements - 1) / kBlockElements) : 0;
}

// Lays the piece out from byte `at` of its chunk; returns the end. Parts that a step walks side by side must not start
// at equal offsets within a page (see Slot::allocate_state); large ones are moved on by a page and a line.
int64_t place(Piece& piece, int64_t at) {
  const auto part = [&at](int64_t bytes) {
    const int64_t here = at;
    at += round_up(bytes, kLine) + (bytes >= 16 * kPage ? kPage + kLine : 0);
    return here;
  };
  for (int k = 0; k < piece.states; ++k) piece.codes_at[k] = part(piece.elements * piece.code_bytes);
  if (piece.scaled)
    for (int k = 0; k < piece.states; ++k) piece.scales_at[k] = part(piece.blocks * 4);
  return at;
}

Piece make_piece(const ShapedParam& param, int64_t first_block, int64_t blocks) {
  const StateShape& s = param.shape;
  Piece piece;
  piece.param = param.param;
  piece.first_block = first_block;
  piece.blocks = blocks;
  const auto before = [&](int64_t block) {
    return block == block_count(s) ? s.rows * s.row_length : elements_before_block(s.row_length, block, kBlockElements);
  };
  piece.first_element = before(first_block);
  piece.elements = before(first_block + blocks) - piece.first_element;
  piece.code_bytes = s.code_bytes;
  piece.states = s.states;
  piece.scaled = s.scaled;
  std::copy(s.zero, s.zero + kMaxStates, piece.zero);
  return piece;
}

}  // namespace

std::vector<Chunk> cut_chunks(std::span<const ShapedParam> params, int64_t chunk_bytes) {
  std::vector<Chunk> chunks;
  int64_t used = 0;  // of the last chunk
  const auto close = [&] {
    if (!chunks.empty()) chunks.back().bytes = round_up(used, kPage);
  };
  for (const ShapedParam& param : params) {
    const int64_t total = block_count(param.shape);
    size_t number = 0;
    for (int64_t done = 0; done < total;) {
      const bool fresh = chunks.empty() || used == 0;
      // The most blocks that still fit, by bisection: their bytes grow with their number, but not evenly.
      int64_t fit = 0, beyond = total - done + 1;
      while (beyond - fit > 1) {
        const int64_t middle = fit + (beyond - fit) / 2;
        Piece trial = make_piece(param, done, middle);
        (place(trial, fresh ? 0 : used) <= chunk_bytes ? fit : beyond) = middle;
      }
      if (fit == 0 && !fresh) {  // a new chunk
        close();
        used = 0;
        continue;
      }
      if (fresh) chunks.emplace_back();
      Piece piece = make_piece(param, done, std::max<int64_t>(fit, 1));
      piece.number = number++;
      used = place(piece, fresh ? 0 : used);
      chunks.back().pieces.push_back(piece);
      done += piece.blocks;
    }
  }
  close();
  return chunks;
}

void fill_zero(const Chunk& chunk, std::byte* memory) {
  std::memset(memory, 0, static_cast<size_t>(chunk.bytes));
  for (const Piece& piece : chunk.pieces)
    for (int k = 0; k < piece.states; ++k)
      if (piece.zero[k])
        std::memset(memory + piece.codes_at[k], piece.zero[k], static_cast<size_t>(piece.elements * piece.code_bytes));
}

}  // namespace lowtide
