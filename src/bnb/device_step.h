// Steps of an Update whose memory only a device's backend reaches.
#pragma once

#include "bnb/update.h"

namespace lowtide::bnb {

// A whole call, ordered on `queue` and done when it returns. What the backend's own step can do is done there, once
// the maps and absmax values have been read back and checked; for the rest everything passes through the host, where
// `cpu` steps it. Throws kInvalidArgument and has changed nothing then; what a lost device leaves is not known.
void step_on_device(const Update& update, Backend& device, void* queue, Backend& cpu, int threads);

}  // namespace lowtide::bnb
