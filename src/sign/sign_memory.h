// Memory for packed signs that both the host and the computing backend can use.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "backend/backend.h"

namespace lowtide::sign {

// Holds the same bytes in device memory, which is zero at first, and in pinned host memory, which is allocated when it
// is first requested. If the backend computes in host memory, both are the same memory. Copies are queued on `stream`.
// Used by one thread at a time.
class SignMemory {
 public:
  // Shares ownership of the backend. Throws kInvalidArgument for a negative size, kOutOfMemory or std::bad_alloc.
  SignMemory(std::shared_ptr<Backend> backend, int64_t bytes);
  // Uses the device memory `there`, which the caller keeps alive, and does not change its contents.
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
  // Zeroes bytes on the device.
  void clear(int64_t first, int64_t bytes, void* stream);
  // Copies bytes to the host, and waits for the copy.
  void fetch(int64_t first, int64_t bytes, void* stream);
  // Copies bytes to the device. The host's bytes must not change before the next fetch, which waits for the copy.
  void send(int64_t first, int64_t bytes, void* stream);
  // Copies the device's bytes from another object with the same backend and size. The host's bytes do not change.
  void copy(SignMemory& from, void* stream);
  // Call these around work on `stream` that uses the device's memory, to order it behind earlier uses on any queue.
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
    memory.note_use(stream);  // part of the work may be queued
    throw;
  }
  memory.note_use(stream);
}

}  // namespace lowtide::sign
