/* liblowtide_bnb: the C functions that bitsandbytes' Python calls for the memory of its paged optimizers, with its
 * names and parameters, and a few of our own (C11).
 *
 * Memory is shared between host and device through the SYCL backend where that can be opened, and else is the host's.
 * The first call decides; lt_bnb_place() says which. Any thread; calls are made one after another.
 *
 * Nothing here prints, exits, aborts or throws. bitsandbytes' functions return nothing by which they could tell a
 * failure: a failed call changes nothing, and lt_bnb_last_error() says why it failed.
 */
#ifndef LOWTIDE_BNB_H_
#define LOWTIDE_BNB_H_

#include <stddef.h>

#include "lowtide/export.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Memory of `bytes` (at least 1) bytes, all zero, aligned to a page. The host may touch it when no device does. NULL if
 * there is none. Freed by cfree_managed_ptr() only. */
LT_API void* cget_managed_ptr(size_t bytes);

/* Waits for the devices' work on memory of cget_managed_ptr() that was queued here, and frees it. ptr is what that
 * returned, or NULL. */
LT_API void cfree_managed_ptr(void* ptr);

/* Asks for memory of cget_managed_ptr() to be moved to a device, by its number (GPUs of the platform in the driver's
 * order, from 0), on a queue of that device's; does not wait. Host memory stays where it is, and so does all memory for
 * device -1, the host: pages come back when they are touched. */
LT_API void cprefetch(void* ptr, size_t bytes, int device);

/* Sets n elements of memory of cget_managed_ptr(), and waits. B is not used. */
LT_API void cfill_fp32(float* A, float* B, float value, long n);
LT_API void cfill_uint8(unsigned char* A, unsigned char* B, unsigned char value, long n);

/* Where memory comes from, in words: "sycl: gpu", "sycl: cpu", or "host: " and why there is no SYCL device. Lives as
 * long as the process. */
LT_API const char* lt_bnb_place(void);

/* Why the last call of this thread that failed did; "" if none has. Valid until the next one of this thread fails. */
LT_API const char* lt_bnb_last_error(void);

#ifdef __cplusplus
}
#endif

#endif
