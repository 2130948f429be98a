// Signs on a SYCL device: what is queued for one item.
#pragma once

#include <sycl/sycl.hpp>

#include "backend/signs.h"
#include "backend/sycl/host/kernels.h"
#include "backend/sycl/host/device_memory.h"

namespace lowtide::sycl_host {

// Items are checked, and so are their pointers.
void pack_signs(sycl::queue& queue, Kernels& kernels, const SignItem& item);
void unpack_signs(sycl::queue& queue, Kernels& kernels, const SignItem& item);
void vote_signs(sycl::queue& queue, Kernels& kernels, Uploads& uploads, const VoteItem& item);
void count_signs(sycl::queue& queue, Kernels& kernels, Uploads& uploads, const CountItem& item);
void feedback(sycl::queue& queue, Kernels& kernels, Uploads& uploads, const FeedbackItem& item);

}  // namespace lowtide::sycl_host
