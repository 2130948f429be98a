// A chunk that may have a place in a scratch file, and the check that the file returns what was written.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "memory/checksum.h"
#include "memory/plan.h"
#include "memory/scratch_file.h"

namespace lowtide {

struct FiledChunk {
  Chunk chunk;
  int64_t file_offset = -1;  // -1: has never been in the file
  uint64_t generation = 0;   // times it was written
  uint64_t checksum = 0;     // checksum of the last write

  uint64_t checksum_of(const std::byte* bytes, size_t number, uint64_t of_generation, int threads = 1) const {
    return chunk_checksum(bytes, chunk.bytes, static_cast<int64_t>(number), of_generation, threads);
  }
  // Throws kIo if `got`, read back, differs from the last write.
  void check(const std::byte* got, size_t number, int threads = 1) const;
  // Reads at once, and checks. On an error this object is unchanged.
  void read(ScratchFile& file, size_t number, std::byte* to) const;
  void write(ScratchFile& file, size_t number, const std::byte* from);
};

// By chunk, its offset in the file; -1: it has no place there.
struct FilePlaces {
  std::vector<int64_t> offsets;
  int64_t bytes = 0;  // size of the file

  // Throws kInvalidArgument if the limit (-1: none) is too low for it.
  void check(int64_t limit) const;
  // Creates the file, or enlarges it. Throws like ScratchFile and changes nothing.
  void fit(std::unique_ptr<ScratchFile>& file, Env& env, const std::string& directory) const;
};

// Existing chunks keep their places. Those that move to the disk without one get a place at the end. bytes, tiers: of
// the existing chunks, followed by new ones.
template <class Record>
FilePlaces places_of(const std::vector<Record>& chunks, const std::vector<int64_t>& bytes,
                     const std::vector<Tier>& tiers) {
  FilePlaces out{std::vector<int64_t>(bytes.size(), -1)};
  for (size_t i = 0; i < chunks.size(); ++i)
    if (out.offsets[i] = chunks[i].file_offset; out.offsets[i] >= 0)
      out.bytes = std::max(out.bytes, out.offsets[i] + chunks[i].chunk.bytes);
  for (size_t i = 0; i < bytes.size(); ++i)
    if (out.offsets[i] < 0 && tiers[i] == Tier::kDisk) out.offsets[i] = std::exchange(out.bytes, out.bytes + bytes[i]);
  return out;
}

}  // namespace lowtide
