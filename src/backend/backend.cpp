#include "backend/backend.h"

#include "core/error.h"

namespace lowtide {

void Device::use_allocator(const Allocator&) {
  fail(ErrorKind::kUnsupported, "this backend takes device memory from its driver only");
}

void Backend::norms(std::span<const StepItem>, int, std::span<BlockNorms>, void*) {
  fail(ErrorKind::kUnsupported, "the %s backend cannot return norms to the host", name());
}

void Backend::add_norms(std::span<const StepItem>, void*) {
  fail(ErrorKind::kUnsupported, "the %s backend cannot add norms on its device", name());
}

std::shared_ptr<RecordedStep> Backend::record_step(std::span<const StepItem>, bool, void*) {
  fail(ErrorKind::kUnsupported, "the %s backend cannot record steps for replays", name());
}

}  // namespace lowtide
