#include "memory/offloaded.h"

#include <algorithm>
#include <deque>

#include "memory/checksum.h"

namespace lowtide {
namespace {

constexpr int64_t kPart = int64_t{16} << 20;
constexpr size_t kUnderWay = 2;  // number of parts: one is read or written while another is checked

}  // namespace

template <class Fn>
void OffloadedMemory::for_each_part(Fn&& fn) const {
  int64_t number = 0, offset = 0;
  for (const Buffer* buffer : buffers_) {
    const auto bytes = static_cast<int64_t>(buffer->bytes());
    for (int64_t at = 0; at < bytes; at += kPart) {
      const int64_t n = std::min(kPart, bytes - at);
      fn(number++, offset, std::span<std::byte>(buffer->data() + at, static_cast<size_t>(n)));
      offset += n;
    }
  }
}

OffloadedMemory::OffloadedMemory(Env& env, const std::string& directory, std::vector<const Buffer*> buffers,
                                 int threads)
    : directory_(directory), buffers_(std::move(buffers)) {
  for (const Buffer* buffer : buffers_) bytes_ += static_cast<int64_t>(buffer->bytes());
  file_ = std::make_unique<ScratchFile>(env, directory, bytes_);
  std::deque<ScratchFile::Ticket> under_way;
  for_each_part([&](int64_t number, int64_t offset, std::span<std::byte> memory) {
    const auto bytes = static_cast<int64_t>(memory.size());
    under_way.push_back(file_->write(offset, memory.data(), bytes));
    checksums_.push_back(chunk_checksum(memory.data(), bytes, number, 1, threads));
    if (under_way.size() < kUnderWay) return;
    file_->wait(under_way.front());
    under_way.pop_front();
  });
  for (const ScratchFile::Ticket ticket : under_way) file_->wait(ticket);
  for (const Buffer* buffer : buffers_) buffer->drop_pages();
}

void OffloadedMemory::bring_back(int threads) {
  struct Part {
    ScratchFile::Ticket ticket;
    int64_t number;
    std::span<std::byte> memory;
  };
  std::deque<Part> under_way;
  const auto finish_one = [&] {
    const Part part = under_way.front();
    under_way.pop_front();
    file_->wait(part.ticket);
    if (chunk_checksum(part.memory.data(), static_cast<int64_t>(part.memory.size()), part.number, 1, threads) !=
        checksums_[static_cast<size_t>(part.number)])
      fail_io(0, "the optimizer's state that was put aside in '%s' is not what was written", directory_.c_str());
  };
  try {
    for_each_part([&](int64_t number, int64_t offset, std::span<std::byte> memory) {
      under_way.push_back({file_->read(offset, memory.data(), static_cast<int64_t>(memory.size())), number, memory});
      if (under_way.size() == kUnderWay) finish_one();
    });
    while (!under_way.empty()) finish_one();
  } catch (...) {
    for (const Part& part : under_way) try {
        file_->wait(part.ticket);
      } catch (const Error&) {  // the first error is reported
      }
    throw;
  }
}

}  // namespace lowtide
