#include "memory/staged_chunk.h"

namespace lowtide {

std::byte* StagedChunk::bring(size_t chunk, Env& env, Buffer& memory, int64_t bytes) {
  if (holds(chunk)) return copy_;
  write_back();
  forget();
  if (static_cast<int64_t>(memory.bytes()) < bytes) memory = Buffer(env, static_cast<size_t>(bytes));
  copy_ = memory.data();
  read_(chunk, copy_);
  chunk_ = chunk;
  return copy_;
}

void StagedChunk::write_back() {
  if (!changed_) return;
  write_(*chunk_, copy_);
  changed_ = false;
}

}  // namespace lowtide
