// How much device memory state has, from call to call.
#include "optim/optimizer_impl.h"

namespace lowtide {

int64_t Optimizer::prefetch(int64_t bytes, void* stream) {
  const Exclusive guard(impl_->busy);
  LT_REQUIRE(bytes >= 0, "got %lld bytes to prefetch, wanted 0 or more", ll(bytes));
  Device* const device = impl_->backend->device();
  LT_REQUIRE(!stream || device, "got a stream for CPU parameters, wanted nullptr");
  if (!device || device->is_capturing(stream)) return 0;
  std::optional<Impl::Pending>& pending = impl_->pending;
  if (pending && !pending->replayed && device->has_happened(pending->queued))
    impl_->resolve();  // which then waits for nothing
  int64_t taken = 0;
  for (const std::unique_ptr<Home>& home : impl_->homes)
    if (DeviceStore* const store = home->device_store()) {
      if (!pending) store->note_what_happened();
      taken += store->prefetch(bytes - taken, stream);
    }
  return taken;
}

int64_t Optimizer::demote(int64_t bytes) {
  const Exclusive guard(impl_->busy);
  LT_REQUIRE(bytes >= 0, "got %lld bytes to demote, wanted 0 or more", ll(bytes));
  int64_t freed = 0;
  for (const std::unique_ptr<Home>& home : impl_->homes)
    if (DeviceStore* const store = home->device_store()) freed += store->demote(bytes - freed);
  return freed;
}

void Optimizer::Impl::end_prefetch() {
  for (const std::unique_ptr<Home>& home : homes)
    if (DeviceStore* const store = home->device_store()) store->end_prefetch();
}

// Each budget under automatic residency has its share of what is free.
void Optimizer::Impl::tell_homes(const StepOptions& options) {
  int64_t automatic = 0;
  for (const std::unique_ptr<Home>& home : homes) automatic += home->automatic();
  for (const std::unique_ptr<Home>& home : homes)
    home->tell(options.stream, options.free_bytes < 0 || automatic == 0 ? -1 : options.free_bytes / automatic);
}

}  // namespace lowtide
