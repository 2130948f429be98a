#include "backend/backend.h"

#include "core/error.h"

namespace lowtide {

void Device::use_allocator(const Allocator&) {
  fail(ErrorKind::kUnsupported, "this backend takes device memory from its driver only");
}

std::shared_ptr<RecordedStep> Backend::record_step(std::span<const StepItem>, bool, void*) {
  fail(ErrorKind::kUnsupported, "the %s backend records no steps for replays", name());
}

}  // namespace lowtide
