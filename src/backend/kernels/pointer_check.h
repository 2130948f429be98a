// A kernel that touches memory that its device cannot address kills the device's context, or the process. So a call
// checks its pointers before it queues anything: this file lists each item's arrays, and the backend knows the valid
// memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "backend/backend.h"

namespace lowtide::kernels {

class PointerCheck {
 public:
  virtual ~PointerCheck() = default;

  // Each throws kInvalidArgument, with the array and the item's index.
  void operator()(const StepItem& item, size_t index) const;
  void operator()(const CodecItem& item) const;
  void operator()(const SignItem& item, size_t index) const;
  void operator()(const VoteItem& item, size_t index) const;
  void operator()(const CountItem& item, size_t index) const;
  void operator()(const ApplyItem& item, size_t index) const;
  void operator()(const FeedbackItem& item, size_t index) const;
  void gradient(const StepItem& item, size_t index) const;

  // Checks one array, which may be nullptr.
  void one(const void* data, const char* what, size_t index) const {
    if (!any_ && data) check(data, what, index);
  }

 protected:
  virtual void check(const void* data, const char* what, size_t index) const = 0;
  // any: no check is needed, because the device can address all memory of the process or the caller vouches for it.
  explicit PointerCheck(bool any) : any_(any) {}

 private:
  // Checks the ballots of voters with a nonzero weight; the index is the voter's.
  template <class T>
  void voters(std::span<const T* const> rows, std::span<const uint32_t> weights, const char* what) const;

  bool any_;
};

}  // namespace lowtide::kernels
