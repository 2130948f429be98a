// A kernel that touches memory its device cannot address kills the device's context, or the process. So a call checks
// its pointers before anything is queued.
#pragma once

#include <sycl/sycl.hpp>

#include <cstddef>
#include <cstdint>
#include <span>

#include "backend/backend.h"

namespace lowtide::sycl_host {

class PointerCheck {
 public:
  // system_allocations: the device can address all memory of the process, so there is nothing to check.
  PointerCheck(const sycl::context& context, bool system_allocations) : context_(context), any_(system_allocations) {}

  // Each throws kInvalidArgument, naming the array and the item's position.
  void operator()(const StepItem& item, size_t index) const;
  void operator()(const CodecItem& item) const;
  void operator()(const SignItem& item, size_t index) const;
  void operator()(const VoteItem& item, size_t index) const;
  void operator()(const CountItem& item, size_t index) const;
  void operator()(const ApplyItem& item, size_t index) const;
  void operator()(const FeedbackItem& item, size_t index) const;
  void gradient(const StepItem& item, size_t index) const;

  // One array, which may be nullptr.
  void one(const void* data, const char* what, size_t index) const;

 private:
  // Those of voters with a weight; the index is the voter's.
  template <class T>
  void voters(std::span<const T* const> rows, std::span<const uint32_t> weights, const char* what) const;

  sycl::context context_;
  bool any_;
};

}  // namespace lowtide::sycl_host
