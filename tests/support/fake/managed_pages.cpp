#include "support/fake/managed_pages.h"
#include "support/test.h"

namespace lowtide::fake {

ManagedPages::ManagedPages(int64_t page_bytes, int64_t capacity)
    : page_bytes_(page_bytes), capacity_(std::max<int64_t>(capacity / page_bytes, 1)) {}

int64_t ManagedPages::add(int64_t bytes) {
  end_ += bytes;
  return end_ - bytes;
}

void ManagedPages::touch(int64_t address, int64_t bytes) {
  for (int64_t page = address / page_bytes_; page * page_bytes_ < address + bytes; ++page) {
    if (const auto found = places_.find(page); found != places_.end()) {
      by_touch_.splice(by_touch_.begin(), by_touch_, found->second);
      continue;
    }
    if (static_cast<int64_t>(places_.size()) == capacity_) {
      places_.erase(by_touch_.back());
      by_touch_.pop_back();
      ++out_;
    }
    by_touch_.push_front(page);
    places_[page] = by_touch_.begin();
    ++in_;
  }
}

}  // namespace lowtide::fake
