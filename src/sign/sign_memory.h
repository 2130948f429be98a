// Memory for packed signs that both the host and the computing backend can use.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "backend/backend.h"

namespace lowtide::sign {

// The same bytes twice: in device memory, initially zero, and pinned on the host once they are requested there; only
// once if the backend computes in host memory. Copies are queued on `stream`. One thread at a time.
class SignMemory {
 public:
  // Keeps the backend. Throws kInvalidArgument for a negative size, kOutOfMemory, std::bad_alloc.
  SignMemory(std::shared_ptr<Backend> backend, int64_t bytes);
  // The same with device memory `there`, which the caller keeps alive; its contents are unchanged.
  SignMemory(std::shared_ptr<Backend> backend, std::byte* there, int64_t bytes);
  // Waits for all uses of the memory.
  ~SignMemory();
  SignMemory(const SignMemory&) = delete;
  SignMemory& operator=(const SignMemory&) = delete;

  std::byte* host();
  // Frees the host's bytes if they are separate from the device's.
  void drop_host();
  std::byte* there() const { return there_; }
  int64_t bytes() const { return bytes_; }
  // Sets bytes on the device to 0.
  void clear(int64_t first, int64_t bytes, void* stream);
  // Copies to the host and waits.
  void fetch(int64_t first, int64_t bytes, void* stream);
  // Copies to the device. The host's bytes must stay until the next fetch, which waits for the copy.
  void send(int64_t first, int64_t bytes, void* stream);
  // Copies the device's bytes of another object with the same backend and size; the host's bytes do not change.
  void copy(SignMemory& from, void* stream);
  // Call around work on `stream` that uses the device's memory: orders it behind earlier uses, on any queue.
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

// Calls work(), which queues operations on the memory on `stream`, between follow() and note_use().
template <class Work>
void with_memory(SignMemory& memory, void* stream, Work&& work) {
  memory.follow(stream);
  try {
    work();
  } catch (...) {
    memory.note_use(stream);  // part of it may be queued
    throw;
  }
  memory.note_use(stream);
}

}  // namespace lowtide::sign
