// Fibers that stay for good: each runs one body after another, on a stack of its own.
#pragma once

#include <boost/context/fiber.hpp>
#include <boost/context/protected_fixedsize_stack.hpp>
#include <functional>
#include <memory>
#include <vector>

namespace cuda_emulator {

// Used by one thread at a time. What runs on the caller's stack is the scheduler.
class Fibers {
 public:
  // The fibers of the process. They are never destroyed, since that would unwind them.
  static Fibers& get();
  // The body of all fibers that are begun from here on, at least `count` of them.
  void prepare(int count, const std::function<void()>* body);
  // Lets fiber i run until it leaves or its body returns: then true. A fiber whose body has returned begins it anew.
  bool resume(int i);
  // Leaves the running fiber.
  void leave();

 private:
  struct Fiber {
    boost::context::fiber itself, scheduler;
    bool returned = false;
    void* fake_stack = nullptr;  // of AddressSanitizer
    const void* stack_bottom = nullptr;
    size_t stack_bytes = 0;
  };
  void switch_to(Fiber& fiber);
  void switch_back(Fiber& fiber);
  boost::context::fiber make(Fiber& fiber);

  std::vector<std::unique_ptr<Fiber>> fibers_;
  const std::function<void()>* body_ = nullptr;
  Fiber* current_ = nullptr;
  void* scheduler_fake_stack_ = nullptr;
  const void* scheduler_bottom_ = nullptr;
  size_t scheduler_bytes_ = 0;
};

}  // namespace cuda_emulator
