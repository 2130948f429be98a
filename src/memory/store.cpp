#include "memory/store.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "core/error.h"
#include "core/sizes.h"

namespace lowtide {

void raise_kept(std::exception_ptr failure, const char* done, int64_t kept_bytes) {
  if (!failure) return;
  std::string reason = "out of memory";
  int os_error = ENOMEM;
  try {
    std::rethrow_exception(failure);
  } catch (const Error& error) {
    reason = error.what();
    os_error = error.os_error();
  } catch (...) {  // std::bad_alloc
  }
  throw KeptInMemory(ErrorKind::kIo,
                     format("%s. The %s is complete and nothing is lost: what could not be written (%s) is kept in "
                            "RAM, and the next step tries again",
                            reason.c_str(), done, format_bytes(kept_bytes).c_str()),
                     os_error);
}

Store::Index Store::index_of(std::span<const Chunk> chunks, size_t before) const {
  Index places;
  for (size_t i = 0; i < chunks.size(); ++i)
    for (size_t p = 0; p < chunks[i].pieces.size(); ++p) {
      const int64_t param = chunks[i].pieces[p].param;
      LT_REQUIRE(!has(param), "got parameter %lld twice", ll(param));
      places[param].push_back({before + i, p});
    }
  return places;
}

std::vector<bool> Store::due_chunks(const std::vector<int64_t>& wanted) const {
  if (wanted.empty()) return {};
  if (wanted != last_wanted_ || pieces_.size() != last_size_ || last_chunks_.size() != chunks()) {
    last_chunks_.assign(chunks(), false);
    for (const int64_t param : wanted)
      if (const auto found = pieces_.find(param); found != pieces_.end())
        for (const Place& place : found->second) last_chunks_[place.chunk] = true;
    last_wanted_ = wanted;
    last_size_ = pieces_.size();
  }
  std::vector<bool> due = last_chunks_;
  for (size_t i = 0; i < due.size(); ++i)
    if (is_kept(i)) due[i] = true;
  return due;
}

int64_t Store::kept_bytes() const {
  int64_t bytes = 0;
  for (size_t i = 0; i < chunks(); ++i)
    if (is_kept(i)) bytes += chunk_at(i).bytes;
  return bytes;
}

void Store::check_written() {
  stage_.write_back();
  raise_kept(std::exchange(unwritten_, nullptr), "change", kept_bytes());
}

void Store::watch(Told told) {
  settle();
  told_ = std::move(told);
}

void Store::tell(std::span<const PlacedChunk> chunks) const {
  for (const PlacedChunk& placed : chunks) {
    const Piece& first = placed.pieces.front();
    told_(pieces_.at(first.param)[first.number].chunk, host_memory(placed.memory));
  }
}

void Store::visit(int64_t param, bool change, const Visit& visit) {
  const auto found = pieces_.find(param);
  if (found == pieces_.end()) return;
  for (const Place& place : found->second) {
    visit(chunk_at(place.chunk).pieces[place.piece], bring(place.chunk));
    if (change) stage_.note_change(place.chunk);
  }
}

void Store::copy(const Part& part, int64_t offset, int64_t bytes, std::byte* to, const std::byte* from) {
  for (const Place& place : pieces_.at(part.param)) {
    const Piece& piece = chunk_at(place.chunk).pieces[place.piece];
    const StateFormat& format = piece.format[part.k];
    const int64_t first = part.scales ? format.scale_bytes(piece.first_block) : format.code_bytes(piece.first_element);
    const int64_t end = first + (part.scales ? format.scale_bytes(piece.blocks) : format.code_bytes(piece.elements));
    const int64_t begin = std::max(first, offset), stop = std::min(end, offset + bytes);
    if (begin >= stop) continue;
    std::byte* const here =
        bring(place.chunk) + (part.scales ? piece.scales_at[part.k] : piece.codes_at[part.k]) + (begin - first);
    const auto n = static_cast<size_t>(stop - begin);
    if (from) {
      std::memcpy(here, from + (begin - offset), n);
      stage_.note_change(place.chunk);
    } else {
      std::memcpy(to + (begin - offset), here, n);
    }
  }
}

}  // namespace lowtide
