#include "backend/backend.h"

#include "core/error.h"

namespace lowtide {

void* Device::Allocator::take(int64_t bytes) const {
  constexpr uintptr_t kAlignment = 64;
  void* const memory = allocate(context, bytes);
  if (reinterpret_cast<uintptr_t>(memory) % kAlignment == 0) return memory;
  free(context, memory);
  fail(ErrorKind::kInvalidArgument, "got device memory at %p from the caller's allocator, wanted it aligned to %d",
       memory, static_cast<int>(kAlignment));
}

void Device::use_allocator(const Allocator&) {
  fail(ErrorKind::kUnsupported, "this backend takes device memory from its driver only");
}

void Backend::norms(std::span<const StepItem>, int, std::span<BlockNorms>, void*) {
  fail(ErrorKind::kUnsupported, "the %s backend cannot return norms to the host", name());
}

void Backend::sum_terms(std::span<const StepItem>, int, TermSums&, void*) {
  fail(ErrorKind::kUnsupported,
       "the %s backend cannot sum over all parameters: keep parameters of this rule in host memory", name());
}

void Backend::add_norms(std::span<const StepItem>, void*) {
  fail(ErrorKind::kUnsupported, "the %s backend cannot add norms on its device", name());
}

std::shared_ptr<RecordedStep> Backend::record_step(std::span<const StepItem>, bool, void*) {
  fail(ErrorKind::kUnsupported, "the %s backend cannot record steps for replays", name());
}

}  // namespace lowtide
