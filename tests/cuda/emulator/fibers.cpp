#include "fibers.h"

#include <cstddef>

#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/common_interface_defs.h>
#endif

namespace cuda_emulator {
namespace {

#ifdef __SANITIZE_ADDRESS__
constexpr size_t kStackBytes = 512 << 10;
void start_switch(void** save, const void* bottom, size_t bytes) {
  __sanitizer_start_switch_fiber(save, bottom, bytes);
}
void finish_switch(void* save, const void** bottom, size_t* bytes) {
  __sanitizer_finish_switch_fiber(save, bottom, bytes);
}
#else
constexpr size_t kStackBytes = 128 << 10;
void start_switch(void**, const void*, size_t) {}
void finish_switch(void*, const void**, size_t*) {}
#endif

}  // namespace

Fibers& Fibers::get() {
  static auto& fibers = *new Fibers;
  return fibers;
}

void Fibers::prepare(int count, const std::function<void()>* body) {
  body_ = body;
  while (static_cast<int>(fibers_.size()) < count) {
    Fiber& fiber = *fibers_.emplace_back(std::make_unique<Fiber>());
    fiber.itself = make(fiber);
  }
}

boost::context::fiber Fibers::make(Fiber& fiber) {
  boost::context::protected_fixedsize_stack allocator(kStackBytes);
  const boost::context::stack_context stack = allocator.allocate();
  fiber.stack_bottom = static_cast<const std::byte*>(stack.sp) - stack.size;
  // Stacks begin at different places of their pages: caches look at those only.
  const size_t shift = fibers_.size() * 320 % 4096;
  fiber.stack_bytes = stack.size - shift;
  return boost::context::fiber(
      std::allocator_arg,
      boost::context::preallocated(static_cast<std::byte*>(stack.sp) - shift, fiber.stack_bytes, stack), allocator,
      [this, &fiber](boost::context::fiber&& scheduler) -> boost::context::fiber {
        finish_switch(nullptr, &scheduler_bottom_, &scheduler_bytes_);
        fiber.scheduler = std::move(scheduler);
        for (;;) {
          (*body_)();
          fiber.returned = true;
          switch_back(fiber);
        }
      });
}

void Fibers::switch_to(Fiber& fiber) {
  start_switch(&scheduler_fake_stack_, fiber.stack_bottom, fiber.stack_bytes);
  fiber.itself = std::move(fiber.itself).resume();
  finish_switch(scheduler_fake_stack_, nullptr, nullptr);
}

void Fibers::switch_back(Fiber& fiber) {
  start_switch(&fiber.fake_stack, scheduler_bottom_, scheduler_bytes_);
  fiber.scheduler = std::move(fiber.scheduler).resume();
  // Another thread of the host may have resumed it.
  finish_switch(fiber.fake_stack, &scheduler_bottom_, &scheduler_bytes_);
}

bool Fibers::resume(int i) {
  Fiber& fiber = *fibers_[static_cast<size_t>(i)];
  fiber.returned = false;
  current_ = &fiber;
  switch_to(fiber);
  return fiber.returned;
}

void Fibers::leave() { switch_back(*current_); }

}  // namespace cuda_emulator
