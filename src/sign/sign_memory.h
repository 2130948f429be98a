// Memory for packed signs that both the host and the place where they are computed can use.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "backend/backend.h"

namespace lowtide::sign {

// The same bytes twice: zero in memory of the device at first, and pinned on the host from when they are asked for;
// where the backend computes in host memory, once. Copies are queued on `stream`. One thread at a time.
class SignMemory {
 public:
  // Keeps the backend. Throws kInvalidArgument for fewer than 0 bytes, kOutOfMemory, std::bad_alloc.
  SignMemory(std::shared_ptr<Backend> backend, int64_t bytes);
  // The same in `there`, memory of the device that the caller keeps for as long; it is left as it is.
  SignMemory(std::shared_ptr<Backend> backend, std::byte* there, int64_t bytes);
  // Waits for what still uses the memory.
  ~SignMemory();
  SignMemory(const SignMemory&) = delete;
  SignMemory& operator=(const SignMemory&) = delete;

  std::byte* host();
  // Gives the host's bytes back, where they are others than the device's.
  void drop_host();
  std::byte* there() const { return there_; }
  int64_t bytes() const { return bytes_; }
  // Sets bytes of the device's to 0.
  void clear(int64_t first, int64_t bytes, void* stream);
  // To the host; waits for them.
  void fetch(int64_t first, int64_t bytes, void* stream);
  // To the device. The host's bytes must stay until the next fetch, which waits for it.
  void send(int64_t first, int64_t bytes, void* stream);
  // Takes the bytes of another of the same backend and size, where signs are computed; the host's stay as they are.
  void copy(SignMemory& from, void* stream);
  // Around work on `stream` that uses the device's memory: it comes behind what used it before, on whatever queue.
  void follow(void* stream);
  void note_use(void* stream);

 private:
  void check(int64_t first, int64_t bytes) const;

  std::shared_ptr<Backend> backend_;
  Device* device_;
  DeviceBytes on_host_, on_device_;
  std::unique_ptr<std::byte[]> both_;
  std::byte *host_ = nullptr, *there_ = nullptr;
  int64_t bytes_;
  Device::Event used_;
};

// Calls work(), which queues operations that use the memory on `stream`, between follow() and note_use().
template <class Work>
void with_memory(SignMemory& memory, void* stream, Work&& work) {
  memory.follow(stream);
  try {
    work();
  } catch (...) {
    memory.note_use(stream);  // a part may be queued
    throw;
  }
  memory.note_use(stream);
}

}  // namespace lowtide::sign
