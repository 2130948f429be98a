/* liblowtide_bnb: the C functions that bitsandbytes' Python code calls for its optimizers and for the memory of its
 * paged optimizers, with bitsandbytes' names and parameters, and a few functions of our own (C11). docs/cpp.md gives
 * each formula and its differences from bitsandbytes' backends.
 *
 * Threads: any; calls from several threads run one after another. Memory is the caller's, borrowed for the call.
 *
 * Errors: bitsandbytes' functions return nothing that could report a failure. A failed call changes nothing, and
 * lt_bnb_last_error() says why it failed. Nothing here prints, exits, aborts or throws.
 */
#ifndef LOWTIDE_BNB_H_
#define LOWTIDE_BNB_H_

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "lowtide/export.h"

/* clang-format off */
/* The optimizers: X(optimizer, suffix of the name, element type of g and p). A float16 or bfloat16 is passed as its
 * bits. The suffixes are bitsandbytes': optimizers without bfloat16 use 32 and 16. */
#define LT_BNB_OF_THREE(X, name) X(name, fp32, float) X(name, fp16, uint16_t) X(name, bf16, uint16_t)
#define LT_BNB_OF_TWO(X, name) X(name, 32, float) X(name, 16, uint16_t)
#define LT_BNB_EACH_32BIT(X) \
  LT_BNB_OF_THREE(X, adam) LT_BNB_OF_THREE(X, lion) LT_BNB_OF_THREE(X, ademamix) \
  LT_BNB_OF_TWO(X, momentum) LT_BNB_OF_TWO(X, rmsprop) LT_BNB_OF_TWO(X, adagrad)
#define LT_BNB_EACH_8BIT(X) \
  LT_BNB_OF_THREE(X, adam) LT_BNB_OF_THREE(X, lion) LT_BNB_OF_THREE(X, ademamix) \
  LT_BNB_OF_THREE(X, momentum) LT_BNB_OF_THREE(X, rmsprop) LT_BNB_OF_THREE(X, adagrad)

/* The functions' parameters. The 32-bit functions take g before p, the 8-bit ones p before g. */
#define LT_BNB_PARAMETERS_32BIT(T) \
  T *g, T *p, float *state1, float *state2, float *unorm, float max_unorm, float param_norm, float beta1, float beta2, \
  float beta3, float alpha, float eps, float weight_decay, int step, float lr, float gnorm_scale, bool skip_zeros, int n
#define LT_BNB_PARAMETERS_8BIT(T) \
  T *p, T *g, unsigned char *state1, unsigned char *state2, float beta1, float beta2, float beta3, float alpha, \
  float eps, int step, float lr, float *quantiles1, float *quantiles2, float *absmax1, float *absmax2, \
  float weight_decay, float gnorm_scale, bool skip_zeros, int n
/* clang-format on */

#ifdef __cplusplus
extern "C" {
#endif

/* Each steps a parameter of n elements once, in place, and returns when the step is done. g: the gradient, not written.
 * Memory is the host's, or what lt_bnb_use_backend() names; arrays that are written must not overlap.
 *
 * adam, ademamix: state1 and state2 are the averages of g and of g^2; ademamix stores its slow average after the fast
 * one in state1, which thus has 2 n elements. The other optimizers have only state1 and ignore state2 (quantiles2,
 * absmax2). step: from 1. momentum takes beta1 as its momentum, rmsprop as its alpha. beta3 and alpha are ademamix'
 * values for this step. gnorm_scale multiplies the gradient. skip_zeros: elements whose gradient (including
 * weight_decay * p if the rule adds it) is zero stay unchanged, state included.
 *
 * c<optimizer>32bit_grad_<type>: state of n floats each, zero before the first step. max_unorm > 0 (adam, momentum,
 * rmsprop; the others ignore it): the update is scaled down to a norm of max_unorm * param_norm, and *unorm becomes
 * the sum of its squares; else unorm may be NULL. */
#define LT_BNB_DECLARE(name, suffix, T) LT_API void c##name##32bit_grad_##suffix(LT_BNB_PARAMETERS_32BIT(T));
LT_BNB_EACH_32BIT(LT_BNB_DECLARE)
#undef LT_BNB_DECLARE

/* c<optimizer>_8bit_blockwise_grad_<type>: state of n codes each, in blocks of 256 (the last may be short), and
 * ceil(n / 256) absmax values, twice that many in ademamix's absmax1, zero before the first step. A code is the index
 * of value / absmax in the map of 256 ascending floats: quantiles1 for state1, quantiles2 for state2. */
#define LT_BNB_DECLARE(name, suffix, T) LT_API void c##name##_8bit_blockwise_grad_##suffix(LT_BNB_PARAMETERS_8BIT(T));
LT_BNB_EACH_8BIT(LT_BNB_DECLARE)
#undef LT_BNB_DECLARE

/* Sets where the memory of later optimizer calls is: "cpu", the host's (the initial setting); or "sycl" or "cuda",
 * memory that the device `target` can access (in the terms of lowtide's backends: "" or ":1", "gpu", "exact"; NULL: the
 * default). queue: the sycl::queue* or cudaStream_t on which steps are ordered; NULL: the backend's own, for cuda the
 * legacy default stream. Returns 0; on failure returns -1 and changes nothing. */
LT_API int lt_bnb_use_backend(const char* backend, const char* target, void* queue);

/* Sets the number of threads for steps on the host; 0: one per core of the process (initially). Returns 0, or -1. */
LT_API int lt_bnb_set_threads(int threads);

/* Memory of paged optimizers: shared between host and device through the CUDA backend (managed memory) or the SYCL
 * backend, whichever opens first, else the host's. CUDA devices without concurrentManagedAccess, whose driver moves all
 * managed memory before each kernel, get pinned host memory, or ordinary host memory if kernels cannot access pinned
 * memory. A copy of pinned memory must not cross a multiple of 1 GiB from its start, and a forked process does not
 * inherit it. The first of these calls decides; lt_bnb_place() reports the decision.
 *
 * Returns `bytes` (at least 1) zero bytes, aligned to a page, or NULL if there is no memory. The host may touch them
 * while no device does. Free them only with cfree_managed_ptr(). */
LT_API void* cget_managed_ptr(size_t bytes);

/* Waits for device work queued here on memory from cget_managed_ptr(), and frees it. NULL is accepted. */
LT_API void cfree_managed_ptr(void* ptr);

/* Queues a move of memory from cget_managed_ptr() to a device, given by its number (GPUs of the platform in the
 * driver's order, from 0), on a queue of that device; does not wait. Host memory stays where it is. If the device is
 * -1, the host, all memory stays: pages come back when they are touched. */
LT_API void cprefetch(void* ptr, size_t bytes, int device);

/* Sets n elements of memory from cget_managed_ptr(), and waits. B is not used. */
LT_API void cfill_fp32(float* A, float* B, float value, long n);
LT_API void cfill_uint8(unsigned char* A, unsigned char* B, unsigned char value, long n);

/* Says where memory comes from: "cuda: exact" (followed by ", in pinned host memory: " and the reason, if it is not
 * managed), "sycl: gpu", "sycl: cpu", or "host: " and why there is neither a CUDA nor a SYCL device. The text stays
 * valid. */
LT_API const char* lt_bnb_place(void);

/* Says why this thread's last failing call failed; "" if none has failed since lt_bnb_clear_error(). The text is valid
 * until the thread's next failing call. */
LT_API const char* lt_bnb_last_error(void);
LT_API void lt_bnb_clear_error(void);

#ifdef __cplusplus
}
#endif

#endif
