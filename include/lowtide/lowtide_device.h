/* Device memory and queues for programs built without the device's compiler (C11): all that lt_optimizer needs to step
 * parameters there. A program with its own queue (a sycl::queue*, a cudaStream_t) needs none of this: it passes that
 * queue to lt_optimizer_create and, in lt_step_options, to lt_optimizer_step.
 *
 * The conventions of lowtide.h hold, and:
 *  - Work on one queue happens in order, after the call that queued it has returned. Different queues are unordered.
 *  - Queued work may fail later; any later call may report the failure.
 *  - One thread at a time uses an lt_device. */
#ifndef LOWTIDE_LOWTIDE_DEVICE_H_
#define LOWTIDE_LOWTIDE_DEVICE_H_

#include "lowtide/lowtide.h"

#ifdef __cplusplus
extern "C" {
#endif

/* One device in one context, with its own queue. Only queues of that context can use its memory. (CUDA has one context
 * for each device of a process.) */
typedef struct lt_device lt_device;

/* Kinds of memory. Values never change. */
typedef enum lt_memory_kind {
  LT_MEMORY_DEVICE = 0, /* the host must not touch it */
  LT_MEMORY_PINNED = 1, /* host memory that copies access at full rate; not every device can step parameters there */
  LT_MEMORY_SHARED = 2  /* migrates between host and device; only one of them may touch it at a time */
} lt_memory_kind;

/* Bytes of device memory; -1: not known. Set struct_size with the macro before the call. */
typedef struct lt_device_limits_report {
  int64_t struct_size;
  int64_t total_bytes, free_bytes, largest_allocation;
} lt_device_limits_report;
#define LT_DEVICE_LIMITS_REPORT_INIT \
  { sizeof(lt_device_limits_report), -1, -1, -1 }

/* Opens a device; *out is NULL after a failure.
 *
 * backend: "sycl" or "cuda"; NULL: "sycl". device: as in lt_optimizer_options; NULL: the backend's best, for cuda the
 * current one. queue: a queue of the backend (sycl::queue*, cudaStream_t) whose device and context to use, read during
 * the call (a sycl::queue is copied). NULL: a context shared by all lt_devices and optimizers that were given no queue.
 *
 * LT_UNSUPPORTED if there is no such device here; lt_last_error() says what is missing. */
LT_API lt_status lt_device_open(const char* backend, const char* device, void* queue, lt_device** out);
/* Waits for the device's own queue, frees all memory from lt_device_alloc and closes. First destroy the optimizers that
 * use the memory or the queue, and wait for your own queues. NULL is accepted. */
LT_API void lt_device_close(lt_device* device);

/* *queue gets the device's own queue (a sycl::queue*, a cudaStream_t), in order: pass it to other calls as their
 * stream. The device owns it. On cuda it is a non-blocking stream: unordered with the default stream. */
LT_API lt_status lt_device_queue(lt_device* device, void** queue);
/* Asks the driver how much memory there is now. */
LT_API lt_status lt_device_limits(lt_device* device, lt_device_limits_report* out);

/* Allocates bytes > 0 of a kind (an lt_memory_kind), aligned to at least 64 bytes and not initialized. The device owns
 * it: free it with lt_device_free, or all memory with lt_device_close. LT_OUT_OF_MEMORY if it is short; *out is NULL
 * after a failure. */
LT_API lt_status lt_device_alloc(lt_device* device, int32_t kind, int64_t bytes, void** out);
/* Frees memory from lt_device_alloc; NULL is accepted. No queued work may still use it. */
LT_API lt_status lt_device_free(lt_device* device, void* memory);

/* Queues a copy between memory of any kind, ordinary host memory included; both must stay until it is done. queue NULL:
 * the device's own. */
LT_API lt_status lt_device_copy(lt_device* device, void* queue, void* to, const void* from, int64_t bytes);
/* Waits for all work now on `queue`; NULL: on the device's own queue. */
LT_API lt_status lt_device_synchronize(lt_device* device, void* queue);

#ifdef __cplusplus
}
#endif

#endif /* LOWTIDE_LOWTIDE_DEVICE_H_ */
