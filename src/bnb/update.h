// One call of an optimizer's symbol, its meaning in terms of the portable rules, and its step, either in memory that
// the host can read or in memory that only a device's backend can access.
#pragma once

#include <cstddef>
#include <cstdint>

#include "backend/backend.h"
#include "backend/limits.h"

namespace lowtide::bnb {

enum class Family { adam, momentum, rmsprop, lion, adagrad, ademamix };  // named like the symbols

// The parameters of a call of either kind of symbol (lowtide/bnb.h), and the kind.
struct Update {
  Family family = Family::adam;
  DType dtype = DType::kF32;  // the type of g and p
  void* p = nullptr;
  const void* g = nullptr;
  void *state1 = nullptr, *state2 = nullptr;  // floats, or codes if `coded`
  bool coded = false;
  const float *quantiles1 = nullptr, *quantiles2 = nullptr;
  float *absmax1 = nullptr, *absmax2 = nullptr;
  float *unorm = nullptr, max_unorm = 0, param_norm = 0;
  float beta1 = 0, beta2 = 0, beta3 = 0, alpha = 0, eps = 0, weight_decay = 0, lr = 0, gnorm_scale = 1;
  int step = 1;
  bool skip_zeros = false;
  int64_t n = 0;

  int64_t blocks() const { return (n + kBlockElements - 1) / kBlockElements; }
  int rule() const;    // number in rules.def
  int states() const;  // number of the rule's states
  // Returns true if state k of the rule is a second moment, which is never negative.
  bool is_second_moment(int k) const;
  // Returns state k of the rule. The slow average of ademamix is the second half of state1.
  void* state(int k) const;
  float* absmax(int k) const;
  const float* quantiles(int k) const;

  // Returns true if the norm of the update is limited.
  bool is_limited() const;
  // Returns the weight decay that is added to the gradient, or 0 for rules that do not add it there.
  float l2() const;
};

// Throws kInvalidArgument for invalid arguments. Reads no memory.
void check_arguments(const Update& update);
// Checks maps and absmax values, which the host must be able to read. Throws kInvalidArgument.
void check_scales(const Update& update);

// fits_backend() returns true if a backend's step() can do this step; step() supports neither skip_zeros nor maps other
// than dynamic8's. item_of() makes the item for step(); `layout` and `args` must outlive the item.
bool fits_backend(const Update& update);
StepItem item_of(const Update& update, const Layout& layout, const void* args);
// Returns a layout of n elements in one row, because bitsandbytes' blocks ignore rows.
Layout flat_layout(int64_t n);

// Holds the rule's Args. `update_scale` multiplies the update, but not weight decay.
struct ArgsBytes {
  alignas(16) std::byte data[kArgsBytes];
};
ArgsBytes args_of(const Update& update, double update_scale);

// Returns element i of an array of this type.
float value_of(DType dtype, const void* data, int64_t i);

// Returns the sum of the squares of the updates that a step would make, in units of lr and without weight decay. The
// result does not depend on the number of threads.
double update_norm_squared(const Update& update, Backend& cpu, int threads);

// Steps with any map and with skip_zeros: converts states to floats, which the backend steps. Gives the bits of
// Backend::step if that can make the whole step.
void step_floats(const Update& update, const ArgsBytes& args, Backend& cpu, int threads);

// Throws kInvalidArgument for a gradient that is not finite or has a magnitude of 2^62 or more. `bad` is the result of
// Backend::first_nonfinite.
void require_finite_gradient(int64_t bad);

// Performs a whole call: checks everything, then steps, with the backend's step if possible. Throws kInvalidArgument
// and then has changed nothing.
void step_on_host(const Update& update, Backend& cpu, int threads);

// Performs a whole call, ordered on `queue` and complete when it returns. If the device's step() can do the step, the
// maps and absmax values are first read back through `pinned` and checked; the host waits once for them and the check
// of the gradient, and once for the step. Otherwise everything passes through the host, where `cpu` steps it. `pinned`
// is memory of the device's backend, which is enlarged as needed; keep it for the next call. Nothing uses it after the
// call. Throws kInvalidArgument and then has changed nothing. If the device is lost, the contents are undefined.
void step_on_device(const Update& update, Backend& device, void* queue, DeviceBytes& pinned, Backend& cpu, int threads);

}  // namespace lowtide::bnb
