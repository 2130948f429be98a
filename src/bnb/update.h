// One call of an optimizer's symbol, its meaning in terms of the portable rules, and its steps: in memory that the host
// can read, or that only a device's backend can access.
#pragma once

#include <cstddef>
#include <cstdint>

#include "backend/backend.h"
#include "backend/limits.h"

namespace lowtide::bnb {

enum class Family { adam, momentum, rmsprop, lion, adagrad, ademamix };  // with the symbols' names

// The parameters of either kind of symbol (lowtide/bnb.h), and which kind it is.
struct Update {
  Family family = Family::adam;
  DType dtype = DType::kF32;  // for g and p
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
  // True if state k of the rule is a second moment, which is never negative.
  bool is_second_moment(int k) const;
  // State k of the rule: ademamix' slow average is the second half of state1.
  void* state(int k) const;
  float* absmax(int k) const;
  const float* quantiles(int k) const;

  // True if the norm of the update is limited.
  bool is_limited() const;
  // Weight decay that is added to the gradient, for rules that do so.
  float l2() const;
};

// Throws kInvalidArgument for invalid arguments. Reads no memory.
void check_arguments(const Update& update);
// The same for maps and absmax values, which the host must be able to read.
void check_scales(const Update& update);

// True if a backend's step(), which supports neither skip_zeros nor maps other than dynamic8's, can do the same step.
// layout, args: outlive the item.
bool fits_backend(const Update& update);
StepItem item_of(const Update& update, const Layout& layout, const void* args);
// A layout of n elements as one row: bitsandbytes' blocks ignore rows.
Layout flat_layout(int64_t n);

// The rule's Args; update_scale multiplies the update, but not weight decay.
struct ArgsBytes {
  alignas(16) std::byte data[kArgsBytes];
};
ArgsBytes args_of(const Update& update, double update_scale);

// Element i of an array of this type.
float value_of(DType dtype, const void* data, int64_t i);

// Sum of the squares of the updates that a step would make, in units of lr and without weight decay. Does not depend on
// the number of threads.
double update_norm_squared(const Update& update, Backend& cpu, int threads);

// One step for any map and for skip_zeros: states become floats, which the backend steps. Gives the bits of
// Backend::step if that can make the whole step.
void step_floats(const Update& update, const ArgsBytes& args, Backend& cpu, int threads);

// Throws kInvalidArgument for a gradient that is not finite, or is 2^62 or above. bad: from Backend::first_nonfinite.
void require_finite_gradient(int64_t bad);

// A whole call: checks everything, then steps, with the backend if possible. Throws kInvalidArgument, and has then
// changed nothing.
void step_on_host(const Update& update, Backend& cpu, int threads);

// A whole call, ordered on `queue` and done when it returns. If the backend's own step can do it, it runs there, after
// the maps and absmax values have been read back, through `pinned`, and checked: it waits once for these and the check
// of the gradient, and once for the step. Otherwise everything passes through the host, where `cpu` steps it. pinned:
// on the device's backend, enlarged as needed; keep it for the next call. Nothing uses it after this returns or throws.
// Throws kInvalidArgument and has then changed nothing; after a lost device the contents are undefined.
void step_on_device(const Update& update, Backend& device, void* queue, DeviceBytes& pinned, Backend& cpu, int threads);

}  // namespace lowtide::bnb
