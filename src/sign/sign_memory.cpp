#include "sign/sign_memory.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "core/error.h"

namespace lowtide::sign {

SignMemory::SignMemory(std::shared_ptr<Backend> backend, int64_t bytes)
    : backend_(std::move(backend)), device_(backend_->device()), bytes_(bytes) {
  LT_REQUIRE(bytes >= 0, "got %lld bytes, wanted 0 or more", ll(bytes));
  const int64_t room = std::max<int64_t>(bytes, 1);
  if (!device_) {
    both_ = std::make_unique<std::byte[]>(static_cast<size_t>(room));
    host_ = there_ = both_.get();
    return;
  }
  on_device_ = DeviceBytes(*device_, MemoryKind::kDevice, room);
  there_ = on_device_.data();
  device_->fill(nullptr, there_, 0, 1, room);
  device_->host_wait(device_->record(nullptr));  // any queue may use it next
}

SignMemory::SignMemory(std::shared_ptr<Backend> backend, std::byte* there, int64_t bytes)
    : backend_(std::move(backend)), device_(backend_->device()), there_(there), bytes_(bytes) {
  LT_REQUIRE(device_ && there && bytes > 0, "got memory of %lld bytes at %p, wanted a device's", ll(bytes),
             static_cast<void*>(there));
}

SignMemory::~SignMemory() {
  if (!used_) return;
  try {
    device_->host_wait(used_);
  } catch (const Error&) {  // a lost device no longer uses the memory
  }
}

std::byte* SignMemory::host() {
  if (host_) return host_;
  on_host_ = DeviceBytes(*device_, MemoryKind::kPinned, std::max<int64_t>(bytes_, 1));
  std::memset(on_host_.data(), 0, static_cast<size_t>(on_host_.bytes()));
  return host_ = on_host_.data();
}

void SignMemory::drop_host() {
  if (!device_ || !host_) return;
  device_->host_wait(used_);
  on_host_ = {}, host_ = nullptr;
}

void SignMemory::clear(int64_t first, int64_t bytes, void* stream) {
  check(first, bytes);
  if (!device_) {
    std::memset(there_ + first, 0, static_cast<size_t>(bytes));
    return;
  }
  follow(stream);
  device_->fill(stream, there_ + first, 0, 1, bytes);
  note_use(stream);
}

void SignMemory::fetch(int64_t first, int64_t bytes, void* stream) {
  check(first, bytes);
  if (!device_) return;
  follow(stream);
  device_->copy(stream, host() + first, there_ + first, bytes);
  note_use(stream);
  device_->host_wait(used_);
}

void SignMemory::send(int64_t first, int64_t bytes, void* stream) {
  check(first, bytes);
  if (!device_) return;
  follow(stream);
  device_->copy(stream, there_ + first, host() + first, bytes);
  note_use(stream);
}

void SignMemory::copy(SignMemory& from, void* stream) {
  LT_REQUIRE(from.backend_ == backend_ && from.bytes_ == bytes_,
             "got memory of another backend or of %lld bytes, wanted %lld", ll(from.bytes_), ll(bytes_));
  if (!device_) {
    std::memcpy(there_, from.there_, static_cast<size_t>(bytes_));
    return;
  }
  from.follow(stream);
  follow(stream);
  device_->copy(stream, there_, from.there_, bytes_);
  note_use(stream);
  from.note_use(stream);
}

void SignMemory::follow(void* stream) {
  if (device_) device_->wait(stream, used_);
}

void SignMemory::note_use(void* stream) {
  if (device_) used_ = device_->record(stream);
}

void SignMemory::check(int64_t first, int64_t bytes) const {
  LT_REQUIRE(first >= 0 && bytes >= 0 && first <= bytes_ - bytes, "got bytes %lld and %lld more, wanted some of %lld",
             ll(first), ll(bytes), ll(bytes_));
}

}  // namespace lowtide::sign
