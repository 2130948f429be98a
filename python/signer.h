// Where signs of Python's tensors are computed, and memory for them that both the host and that place can use.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "arguments.h"
#include "backend/backend.h"

namespace lowtide::python {

// The CPU backend that the process shares, or one device. A device's is for one thread at a time.
class SignPlace {
 public:
  // backend, target, stream: as open_backend() takes them.
  SignPlace(const std::string& backend, void* stream, const std::string& target);

  Backend& backend() const { return *backend_; }
  std::shared_ptr<Backend> share() const { return backend_; }

 private:
  std::shared_ptr<Backend> backend_;
};

// The same bytes twice: zero in memory of the device at first, and pinned on the host from when they are asked for; on
// the CPU, once. Copies are queued on `stream`.
class SignMemory {
 public:
  SignMemory(const SignPlace& place, int64_t bytes);
  // Waits for what still uses the memory.
  ~SignMemory();
  SignMemory(const SignMemory&) = delete;
  SignMemory& operator=(const SignMemory&) = delete;

  std::byte* host();
  // Gives the host's bytes back, where they are others than the device's.
  void drop_host();
  std::byte* there() const { return there_; }
  // Sets bytes of the device's to 0.
  void clear(int64_t first, int64_t bytes, void* stream);
  // To the host; waits for them.
  void fetch(int64_t first, int64_t bytes, void* stream);
  // To the device. The host's bytes must stay until the next fetch, which waits for it.
  void send(int64_t first, int64_t bytes, void* stream);
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

}  // namespace lowtide::python
