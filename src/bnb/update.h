// One call of an optimizer's symbol, its meaning in terms of the portable rules, and its steps: in memory that the host
// can read, or that only a device's backend reaches.
#pragma once

#include <cstddef>
#include <cstdint>

#include "backend/backend.h"
#include "backend/limits.h"

namespace lowtide::bnb {

enum class Family { adam, momentum, rmsprop, lion, adagrad, ademamix };  // as the symbols name them

// The parameters of either kind of symbol (lowtide/bnb.h), and which it was.
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
  // Weight decay that is added to the gradient, for the rules that do that.
  float l2() const;
};

// Throws kInvalidArgument for arguments that make no sense. Looks at no memory.
void check_arguments(const Update& update);
// Likewise for maps and absmax values, which the host must be able to read.
void check_scales(const Update& update);

// The same step as an item of a backend's step(), which knows neither skip_zeros nor maps other than dynamic8's.
// layout, args: outlive the item.
bool fits_backend(const Update& update);
StepItem item_of(const Update& update, const Layout& layout, const void* args);
// A layout of n elements as one row: bitsandbytes' blocks do not end at rows.
Layout flat_layout(int64_t n);

// The rule's Args; update_scale multiplies the update, but not weight decay.
struct ArgsBytes {
  alignas(16) std::byte data[kArgsBytes];
};
ArgsBytes args_of(const Update& update, double update_scale);

// Element i of an array of this type.
float value_of(DType dtype, const void* data, int64_t i);

// Sum of the squares of the updates, in units of lr and without weight decay, that a step would make. Does not depend
// on the number of threads.
double update_norm_squared(const Update& update, Backend& cpu, int threads);

// One step for every map and with skip_zeros: states become floats, which the backend steps. The bits of Backend::step
// where that can make the whole step.
void step_floats(const Update& update, const ArgsBytes& args, Backend& cpu, int threads);

// Throws kInvalidArgument for a gradient that is not finite, or of 2^62 and above. bad: as Backend::first_nonfinite.
void require_finite_gradient(int64_t bad);

// A whole call: everything checked, then done, by the backend where that can do it. Throws kInvalidArgument, and has
// changed nothing then.
void step_on_host(const Update& update, Backend& cpu, int threads);

// A whole call, ordered on `queue` and done when it returns. What the backend's own step can do is done there, once
// the maps and absmax values have been read back, by way of `pinned`, and checked: it waits for these and the search of
// the gradient together, and for the step. For the rest everything passes through the host, where `cpu` steps it.
// pinned: the device's, made larger as needed; to be kept for the next call. Nothing uses it once this returns or
// throws. Throws kInvalidArgument and has changed nothing then; what a lost device leaves is not known.
void step_on_device(const Update& update, Backend& device, void* queue, DeviceBytes& pinned, Backend& cpu, int threads);

}  // namespace lowtide::bnb
