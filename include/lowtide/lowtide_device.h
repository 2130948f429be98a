/* Memory and order on a device, for programs without the device's own compiler (C11): what lt_optimizer needs to step
 * parameters there. Conventions of lowtide.h. A program that has a queue of its own (a sycl::queue*, a cudaStream_t)
 * needs none of this: it hands that queue to lt_optimizer_create and lt_optimizer_step.
 *
 * Work on a queue is late and in order; different queues are unordered. Errors of work that was queued may come with
 * any later call. One lt_device is used by one thread at a time.
 */
#ifndef LOWTIDE_LOWTIDE_DEVICE_H_
#define LOWTIDE_LOWTIDE_DEVICE_H_

#include "lowtide/lowtide.h"

#ifdef __cplusplus
extern "C" {
#endif

/* One device in one context: its memory can be used by queues of that context only. (CUDA has one context for each
 * device of a process.) */
typedef struct lt_device lt_device;

/* Kinds of memory. */
typedef enum lt_memory_kind {
  LT_MEMORY_DEVICE = 0, /* the host must not touch it */
  LT_MEMORY_PINNED = 1, /* host memory that copies reach at full rate; not every device can step parameters there */
  LT_MEMORY_SHARED = 2  /* migrates between host and device; only one of them may touch it at a time */
} lt_memory_kind;

/* Bytes of device memory; -1: not known. Set struct_size with the macro before the call. */
typedef struct lt_device_limits_report {
  int64_t struct_size;
  int64_t total_bytes, free_bytes, largest_allocation;
} lt_device_limits_report;
#define LT_DEVICE_LIMITS_REPORT_INIT \
  { sizeof(lt_device_limits_report), -1, -1, -1 }

/* Opens a device. backend: "sycl" or "cuda"; NULL = "sycl". device: as lt_optimizer_options has it; NULL = its best,
 * and for cuda the present one. queue: of the backend (a sycl::queue*, a cudaStream_t), whose device and context are to
 * be used (a sycl::queue is copied: it may go), or NULL: a context that all lt_devices and optimizers without a queue
 * of their own share. LT_UNSUPPORTED if there is none; lt_last_error() says what is missing. */
LT_API lt_status lt_device_open(const char* backend, const char* device, void* queue, lt_device** out);
/* Waits for the device's own queue, frees all memory of lt_device_alloc and closes. No optimizer may still use the
 * memory or the queue: destroy it first, and wait for queues of your own. NULL is accepted. */
LT_API void lt_device_close(lt_device* device);

/* The device's own queue, of the backend (a sycl::queue*, a cudaStream_t), in order: to be handed over as stream.
 * Belongs to the device and is alive as long as it. Of cuda it is a non-blocking stream: unordered with the default
 * one. */
LT_API lt_status lt_device_queue(lt_device* device, void** queue);
LT_API lt_status lt_device_limits(lt_device* device, lt_device_limits_report* out);

/* Memory of kind (an lt_memory_kind), aligned to 64 bytes at least, not initialized. bytes > 0. */
LT_API lt_status lt_device_alloc(lt_device* device, int32_t kind, int64_t bytes, void** out);
/* memory: of lt_device_alloc, or NULL. Nothing that is queued may still use it. */
LT_API lt_status lt_device_free(lt_device* device, void* memory);

/* Queues a copy between memory of any kind, the host's own included; both must stay until it is done. queue NULL: the
 * device's own. */
LT_API lt_status lt_device_copy(lt_device* device, void* queue, void* to, const void* from, int64_t bytes);
/* Waits for all that is queued on queue; NULL: on the device's own. */
LT_API lt_status lt_device_synchronize(lt_device* device, void* queue);

#ifdef __cplusplus
}
#endif

#endif /* LOWTIDE_LOWTIDE_DEVICE_H_ */
