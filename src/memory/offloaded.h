// Puts state memory aside while a program needs the RAM for something else, such as generating text between training
// phases. The bytes go to a scratch file and the pages back to the system; the addresses remain reserved.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "core/buffer.h"
#include "memory/scratch_file.h"

namespace lowtide {

class OffloadedMemory {
 public:
  // Writes the buffers, which must outlive this object, to a scratch file in `directory` and drops their pages. Until
  // bring_back(), the buffers read as zero and must not be written. Throws kInvalidArgument or kIo like ScratchFile;
  // then the buffers are unchanged.
  OffloadedMemory(Env& env, const std::string& directory, std::vector<const Buffer*> buffers, int threads);

  // Reads everything back and checks it. If this throws kIo, the buffers' contents are undefined, but the file is
  // intact and another call tries again.
  void bring_back(int threads);

  int64_t bytes() const { return bytes_; }

 private:
  // Calls fn(number, offset in the file, memory) for parts small enough that transfers and checksums overlap.
  template <class Fn>
  void for_each_part(Fn&& fn) const;

  std::string directory_;
  std::vector<const Buffer*> buffers_;
  std::vector<uint64_t> checksums_;  // one per part
  std::unique_ptr<ScratchFile> file_;
  int64_t bytes_ = 0;
};

}  // namespace lowtide
