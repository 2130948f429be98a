// Steps of an Update, whose memory the host can read or only a device's backend reaches.
#pragma once

#include "bnb/update.h"

namespace lowtide::bnb {

// The rule's Args; update_scale: multiplies what is subtracted from the parameter, but for weight decay.
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

// Throws kInvalidArgument for a gradient that is not finite, or of 2^62 and above. Waits.
void require_finite_gradient(Backend& backend, const StepItem& item, int threads, void* queue);

// A whole call: everything checked, then done, by the backend where that can do it. Throws kInvalidArgument, and has
// changed nothing then.
void step_on_host(const Update& update, Backend& cpu, int threads);

// A whole call, ordered on `queue` and done when it returns. What the backend's own step can do is done there, once
// the maps and absmax values have been read back and checked; for the rest everything passes through the host, where
// `cpu` steps it. Throws kInvalidArgument and has changed nothing then; what a lost device leaves is not known.
void step_on_device(const Update& update, Backend& device, void* queue, Backend& cpu, int threads);

}  // namespace lowtide::bnb
