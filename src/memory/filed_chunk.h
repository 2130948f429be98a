// A chunk that may have a place in a scratch file. A checksum shows whether the file returns what was written.
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
  int64_t file_offset = -1;  // -1 if the chunk has never been in the file
  uint64_t generation = 0;   // number of writes so far
  uint64_t checksum = 0;     // checksum of the last write

  uint64_t checksum_of(const std::byte* bytes, size_t number, uint64_t of_generation, int threads = 1) const {
    return chunk_checksum(bytes, chunk.bytes, static_cast<int64_t>(number), of_generation, threads);
  }
  // Throws kIo if `got`, which was read from the file, differs from the last write.
  void check(const std::byte* got, size_t number, int threads = 1) const;
  // Read or write the chunk at once; read() also checks it. On an error this object is unchanged.
  void read(ScratchFile& file, size_t number, std::byte* to) const;
  void write(ScratchFile& file, size_t number, const std::byte* from);
};

// The chunks' offsets in the file, indexed by chunk; -1 for a chunk without a place.
struct FilePlaces {
  std::vector<int64_t> offsets;
  int64_t bytes = 0;  // size of the file

  // Throws kInvalidArgument if the limit (-1 for none) is too low for the file.
  void check(int64_t limit) const;
  // Creates or enlarges the file. Throws like ScratchFile and then changes nothing.
  void fit(std::unique_ptr<ScratchFile>& file, Env& env, const std::string& directory) const;
};

template <class Record>
std::vector<int64_t> sizes_of(const std::vector<Record>& chunks) {
  std::vector<int64_t> out;
  for (const Record& record : chunks) out.push_back(record.chunk.bytes);
  return out;
}

// Returns places in which existing chunks keep theirs. Chunks that move to the disk and have no place get one at the
// end. `bytes` and `tiers` describe the existing chunks, followed by the new ones.
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
