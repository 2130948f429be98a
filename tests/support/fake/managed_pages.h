// Acts as a driver that moves managed memory: a page moves to the device when a kernel touches it; without room, the
// least recently touched page moves to the host. Counts pages, and moves no bytes.
#pragma once

#include <list>
#include <unordered_map>

#include "support/test.h"

namespace lowtide::fake {

class ManagedPages {
 public:
  static constexpr int64_t kDefaultBytes = 2 << 20;  // the largest unit that drivers move

  // Has room for as many whole pages as `capacity` bytes hold, at least one. All memory begins on the host.
  ManagedPages(int64_t page_bytes, int64_t capacity);

  // Returns the address of new memory, after all earlier memory, so that small pieces share pages.
  int64_t add(int64_t bytes);
  void touch(int64_t address, int64_t bytes);

  int64_t page_bytes() const { return page_bytes_; }
  int64_t capacity() const { return capacity_; }                            // pages
  int64_t pages() const { return (end_ + page_bytes_ - 1) / page_bytes_; }  // of all memory
  int64_t in() const { return in_; }                                        // pages moved to the device so far
  int64_t out() const { return out_; }                                      // pages moved to the host so far

 private:
  int64_t page_bytes_, capacity_, end_ = 0, in_ = 0, out_ = 0;
  std::list<int64_t> by_touch_;  // pages on the device, most recently touched first
  std::unordered_map<int64_t, std::list<int64_t>::iterator> places_;
};

}  // namespace lowtide::fake
