#include "memory/filed_chunk.h"

#include "core/error.h"

namespace lowtide {

void FiledChunk::check(const std::byte* got, size_t number, int threads) const {
  if (checksum_of(got, number, generation, threads) != checksum)
    fail_io(0,
            "chunk %zu of the optimizer's state (%lld bytes) read back from the disk is not what was written; the file "
            "or the disk was damaged",
            number, ll(chunk.bytes));
}

void FiledChunk::read(ScratchFile& file, size_t number, std::byte* to) const {
  file.wait(file.read(file_offset, to, chunk.bytes));
  check(to, number);
}

void FiledChunk::write(ScratchFile& file, size_t number, const std::byte* from) {
  const uint64_t sum = checksum_of(from, number, generation + 1);
  file.wait(file.write(file_offset, from, chunk.bytes));
  ++generation;
  checksum = sum;
}

void FilePlaces::check(int64_t limit) const {
  LT_REQUIRE(limit < 0 || bytes <= limit,
             "the scratch file, in which chunks keep their places, would grow to %lld bytes, and the disk budget is "
             "%lld bytes; give at least %lld bytes of disk, or save and load into an optimizer that has all "
             "parameters from the start",
             ll(bytes), ll(limit), ll(bytes));
}

void FilePlaces::fit(std::unique_ptr<ScratchFile>& file, Env& env, const std::string& directory) const {
  if (!file)
    file = std::make_unique<ScratchFile>(env, directory, bytes);
  else if (bytes > file->bytes())
    file->grow(bytes);
}

}  // namespace lowtide
