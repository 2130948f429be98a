/* Lowtide's C interface (C11): optimizers with small state, stepped in place on memory that the caller owns.
 *
 * Reading order: status codes, tensors, options, reports; then functions: the library itself, making an optimizer,
 * stepping, state, files. lowtide_device.h provides device memory to programs built without the device's compiler;
 * lowtide_sign.h and lowtide_sign_collective.h cover signs and votes.
 *
 * Conventions
 *  1. Errors: every function that can fail returns an lt_status; 0 is success. After a failure lt_last_error() says
 *     what the call got, what it wanted, and what to do. A failed call changes nothing, unless its comment says
 *     otherwise; an optimizer stays usable after it.
 *  2. Ownership: handles are opaque, made by *_create and freed by *_destroy, which accepts NULL. Tensors, gradients
 *     and options are borrowed. Options and texts are read only during the call; a parameter's memory is used until the
 *     optimizer is destroyed or lt_optimizer_rebind says where it moved. Returned texts belong to the library.
 *  3. Versions: structs that begin with struct_size can grow. Set them up with their LT_..._INIT macro: options added
 *     later then keep their defaults, and reports fill in only the fields that the caller knows. Other structs never
 *     change.
 *  4. Counts and sizes are int64_t; strides count elements. A flag is 0 or 1.
 *  5. Threads: one thread at a time uses an optimizer. A call that overlaps with one that changes the optimizer is
 *     refused (LT_INVALID_ARGUMENT); reading during such a call is a data race. Different optimizers are independent.
 *     Results never depend on the number of threads or the instruction set.
 *  6. Streams: for parameters in host memory every call is done when it returns. For parameters on a device, work is
 *     queued on the given queue, and each call says whether it waits.
 *  7. Nothing here prints, exits, aborts, or throws across the border.
 *
 * Not supported: complex and integer tensors. */
#ifndef LOWTIDE_LOWTIDE_H_
#define LOWTIDE_LOWTIDE_H_

#include <stdint.h>

#include "lowtide/export.h"
#include "lowtide/group.def"
#include "lowtide/version.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Status codes. Gaps are left for later kinds; values never change. */
typedef enum lt_status {
  LT_OK = 0,
  LT_INVALID_ARGUMENT = 1, /* a value is wrong; lt_last_error() says which */
  LT_OUT_OF_MEMORY = 10,   /* not enough host or device memory */
  LT_UNSUPPORTED = 20,     /* valid, but not in this build or on this machine */
  LT_IO_ERROR = 30,        /* a file, disk or transport failed; see lt_last_os_error() */
  LT_DEVICE_LOST = 40,     /* the device is unusable in this process; state in host memory can still be saved */
  LT_INTERNAL = 90         /* a bug of this library */
} lt_status;

/* Element types of parameters and gradients. Values never change. */
typedef enum lt_dtype { LT_F32 = 0, LT_BF16 = 1, LT_F16 = 2 } lt_dtype;

/* How to treat a non-finite gradient: one with a NaN, an infinity or, after grad_scale, a magnitude of 2^62 or more. */
typedef enum lt_nonfinite {
  LT_NONFINITE_SKIP = 0,     /* change nothing, count a skipped step */
  LT_NONFINITE_RAISE = 1,    /* change nothing, return LT_INVALID_ARGUMENT naming the parameter */
  LT_NONFINITE_PROPAGATE = 2 /* do not check, which saves one read of the gradients; bad values spread */
} lt_nonfinite;

/* An optimizer: parameters in groups, and the state that it owns. */
typedef struct lt_optimizer lt_optimizer;
/* A norm of gradients that a device may still be computing. */
typedef struct lt_queued_clip lt_queued_clip;

/* A save that runs beside steps. */
typedef struct lt_save lt_save;

/* A tensor that the caller owns. */
typedef struct lt_tensor {
  void* data;
  int32_t dtype; /* an lt_dtype */
  int32_t ndim;
  const int64_t* sizes;   /* [ndim] */
  const int64_t* strides; /* [ndim], none negative; NULL: contiguous, row-major */
} lt_tensor;

/* A parameter's gradient in one step, with its sizes. data NULL: no gradient; parameter and state stay unchanged. */
typedef struct lt_gradient {
  const void* data;
  int32_t dtype;          /* an lt_dtype */
  const int64_t* strides; /* [ndim of the parameter], 0 allowed; NULL: contiguous */
} lt_gradient;

/* ---- Options ---------------------------------------------------------------------------------------------------- */

/* A budget: where state may live. No bit of any result depends on it.
 *
 * State lives in the nearest tier with room: on the device (for parameters there), in host memory, or in a scratch
 * file. State outside its parameters' tier streams there in every step. For parameters on a device, state in host
 * memory is pinned, and state in the file passes through pinned memory; a step then returns when the file has been
 * written. A disk needs `host` and, for parameters on a device, transfer "copy" or NULL. */
typedef struct lt_memory_options {
  int64_t struct_size;
  int64_t host; /* bytes of host memory, buffers included; -1: no limit */
  /* Directory of the unnamed scratch file, which vanishes with the process; NULL: no disk. The call checks that the
   * directory exists; the first step (or load) that needs disk space checks the space. */
  const char* disk;
  int64_t disk_limit; /* bytes of the scratch file; -1: no limit */
  int64_t chunk;      /* unit of transfer in bytes, a multiple of 4096; 0: chosen from the budget */
  /* The remaining fields are for parameters on a device and must keep their defaults for parameters in host memory. */
  int64_t device;       /* bytes of device memory, buffers included; -1: 7/8 of the memory that is free when state is
                           placed (of all memory, if the driver reports none) */
  int64_t managed;      /* 1: all state in managed (shared) memory, which the driver migrates; 0: off */
  const char* transfer; /* how state that does not fit reaches the device: "copy", "zero_copy", "hybrid"; NULL: the
                           fastest mode of the device, measured once and remembered (docs/offload.md) */
  int64_t automatic; /* 1, with device -1: state created by a step starts on the device if it fits; state loaded earlier
                        starts in host memory and moves once steps have shown what else needs memory. It moves to the
                        host when memory gets short; 0: off */
} lt_memory_options;
#define LT_MEMORY_OPTIONS_INIT \
  { sizeof(lt_memory_options), -1, 0, -1, 0, -1, 0, 0, 0 }

typedef struct lt_optimizer_options {
  int64_t struct_size;
  const char* rule;                /* one of lt_rule_names(); NULL: "adamw" */
  const char* cpu_target;          /* "avx512_vbmi", "avx512", "avx2", "scalar"; NULL: the best for this CPU */
  int32_t nonfinite;               /* an lt_nonfinite */
  int32_t threads;                 /* worker threads, the caller included; 0: one per core */
  const lt_memory_options* memory; /* the budget of groups without their own; NULL: no limit */
  /* Where parameters and gradients are. */
  const char* backend; /* the name of one of lt_backends(); NULL: "cpu" */
  const char* device;  /* a device in the backend's terms: "gpu", "cpu" (sycl), "exact:0", "fast:1" (cuda: how it
                          computes, and the device's number); NULL: the backend's best */
  void* stream;        /* a queue (sycl::queue*, cudaStream_t) whose device and context all steps use, read during the
                          call; NULL: a queue of the backend (cuda: the legacy default stream) */
  /* For cuda and sycl: a source of device memory that replaces the driver; set both functions or none. allocate returns
   * `bytes`, aligned to 256 bytes, or NULL. Any call on this optimizer may call the functions, on the calling thread;
   * they must not call back into the optimizer. Work already queued on the streams of steps may still use freed memory:
   * hand it out again only to work queued later. note_use, which may be NULL, announces that memory about to be freed
   * is still used by work queued on `stream` (one of the optimizer's streams, or the last step's): hand it out only
   * after that work. If note_use is NULL or returns 0, a later call frees such memory, once that work is done. */
  void* allocator_context;
  void* (*allocate)(void* allocator_context, int64_t bytes);
  void (*deallocate)(void* allocator_context, void* memory);
  int32_t (*note_use)(void* allocator_context, void* memory, void* stream);
  uint64_t seed; /* for stochastic rounding: random bits depend only on the seed, the step and the element */
} lt_optimizer_options;
#define LT_OPTIMIZER_OPTIONS_INIT \
  { sizeof(lt_optimizer_options), 0, 0, LT_NONFINITE_SKIP, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0 }

/* lowtide/group.def lists the options and says what each means. A text of NULL is the default. */
typedef struct lt_group_options {
  int64_t struct_size;
#define LT_GROUP_TEXT(name, value, fixed) const char* name;
#define LT_GROUP_COUNT(name, value, fixed) int64_t name;
#define LT_GROUP_BUDGET(name) const lt_memory_options* name;
  LT_GROUP_OPTIONS(LT_GROUP_TEXT, LT_GROUP_COUNT, LT_GROUP_BUDGET)
#undef LT_GROUP_TEXT
#undef LT_GROUP_COUNT
#undef LT_GROUP_BUDGET
} lt_group_options;
#define LT_GROUP_NULL(...) , 0
#define LT_GROUP_NUMBER(name, value, fixed) , value
#define LT_GROUP_OPTIONS_INIT \
  { sizeof(lt_group_options) LT_GROUP_OPTIONS(LT_GROUP_NULL, LT_GROUP_NUMBER, LT_GROUP_NULL) }

typedef struct lt_step_options {
  int64_t struct_size;
  /* The queue (an in-order sycl::queue*, a cudaStream_t) on which a step of parameters on a device is ordered. It must
   * outlive the optimizer. NULL: a queue of the backend. Must be NULL for parameters in host memory. */
  void* stream;
  double grad_scale;     /* every gradient is multiplied by this (as float32) before use, e.g. 1 / loss scale */
  int64_t assume_finite; /* 1: the caller has checked the gradients, so the step does not */
  int64_t free_bytes;    /* for lt_memory_options.automatic: bytes of device memory that nothing else needs, even when
                            activations are back, including memory that the caller's allocator caches unused; -1: the
                            free memory that the driver reports now */
  lt_queued_clip* clip;  /* from lt_optimizer_queue_clip_grad_norm for the gradients of this step, unchanged since; the
                            step also multiplies them by its factor. On a stream that is being captured it must have
                            been queued there: each replay clips by its own norm. NULL: none */
  /* Loss scaling by float32 words in memory of the parameters' device, for a step on a CUDA stream that is being
   * captured: each replay reads them, divides gradients by *loss_scale (NULL: they are divided already) and, if
   * *found_inf is above 0, changes nothing and counts as skipped. NULL: no loss scaling.
   * lt_optimizer_queue_clip_grad_norm measures gradients divided by *loss_scale; pass only found_inf to its step. */
  const float* loss_scale;
  const float* found_inf;
} lt_step_options;
#define LT_STEP_OPTIONS_INIT \
  { sizeof(lt_step_options), 0, 1.0, 0, -1, 0, 0, 0 }

/* ---- Reports: set struct_size with the macro before the call --------------------------------------------------- */

/* The outcome of a step. */
typedef struct lt_step_report {
  int64_t struct_size;
  int64_t applied;         /* 0: skipped because of a non-finite gradient or (Prodigy) sum */
  int64_t nonfinite_param; /* the first parameter whose gradient was not finite; -1: none */
  int64_t pending;         /* 1: the device checks the gradients and has not reported yet. If one is not finite, the
                              step changes nothing; the next call that must know takes it out of the count and, with
                              LT_NONFINITE_RAISE, fails in its place */
} lt_step_report;
#define LT_STEP_REPORT_INIT \
  { sizeof(lt_step_report), 0, -1, 0 }

/* The norm of all gradients together, and the arguments with which the next step clips them: lt_step_options with this
 * grad_scale and with assume_finite = finite. */
typedef struct lt_clip_report {
  int64_t struct_size;
  double norm;       /* before clipping, after the given grad_scale; NaN or infinite if a gradient is */
  double grad_scale; /* the given scale times min(1, max_norm / (norm + 1e-6)); the given scale if the norm is not
                        finite */
  int64_t finite;    /* 0: some gradients may be bad; the step's own check finds them */
} lt_clip_report;
#define LT_CLIP_REPORT_INIT \
  { sizeof(lt_clip_report), 0, 1.0, 1 }

/* Memory of the state: how much, where it is, and how much has moved. lowtide/report.def lists the fields with their
 * units and meanings. `transfer` is valid until the next report on this optimizer. */
typedef struct lt_memory_report {
  int64_t struct_size;
#define LT_REPORT_TEXT const char*
#define LT_REPORT_FIELD(type, name, unit, meaning) type name;
#include "lowtide/report.def"
#undef LT_REPORT_TEXT
} lt_memory_report;
#define LT_MEMORY_REPORT_INIT \
  { sizeof(lt_memory_report), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0 }

/* One state of one parameter, in memory that the optimizer owns and never moves. A value is map[code] * scale, with one
 * scale for each `block` elements of a row. codes and scales are NULL if the state has no host memory of its own
 * (streamed, or on a device): use lt_optimizer_read_state. Steps change the codes and scales. */
typedef struct lt_state_view {
  const char* name;  /* "exp_avg", ...; a constant */
  const char* codec; /* "dynamic8", ...; a constant */
  void* codes;       /* [numel] of code_bits each; 4 bits: two per byte, the first in the low half */
  float* scales;     /* [rows][scales_per_row]; NULL if the codec has none */
  int64_t numel, rows, scales_per_row;
  int32_t code_bits, block;
} lt_state_view;

/* A backend ("cpu", "sycl", "cuda") and what it can do in this process. */
typedef struct lt_backend_report {
  const char* name;
  const char* detail; /* the devices it runs on by name; or what is missing, and how to get it */
  int32_t available;  /* 1: its kernels can run here and now */
} lt_backend_report;

/* ---- The library: any thread, at any time ---------------------------------------------------------------------- */

/* "0.1.0"; a constant. The version of the library; the macros in version.h give the headers' version. */
LT_API const char* lt_version(void);
/* The name of a status, e.g. "invalid argument"; a constant. */
LT_API const char* lt_status_name(lt_status status);
/* The text of this thread's last failure, "" if there was none. Valid until the thread's next failing call. */
LT_API const char* lt_last_error(void);
/* errno of this thread's last failure if it was LT_IO_ERROR and the system gave a number, else 0. */
LT_API int32_t lt_last_os_error(void);

/* *names gets the update rules, the state formats, or the hyper-parameters: an array that ends with NULL, constant and
 * valid as long as the process runs. docs/rules.md describes each. */
LT_API lt_status lt_rule_names(const char* const** names);
LT_API lt_status lt_state_formats(const char* const** names);
LT_API lt_status lt_hyper_names(const char* const** names);

/* Fills out[0..room) with the backends that this version knows, the CPU first; *count gets their number, even if room
 * is less (room 0 and out NULL: only the count). Texts are valid until this thread's next lt_backends(). Loads the
 * installed plug-ins, which stay loaded, and asks their drivers for devices. The first call that finds the SYCL plug-in
 * sets an environment variable for its duration; other threads must not read the environment then. */
LT_API lt_status lt_backends(lt_backend_report* out, int32_t room, int32_t* count);

/* ---- Making an optimizer --------------------------------------------------------------------------------------- */

/* Makes an optimizer without parameters; *out is NULL after a failure. options NULL: the defaults. LT_UNSUPPORTED if
 * the backend or device cannot be used here. */
LT_API lt_status lt_optimizer_create(const lt_optimizer_options* options, lt_optimizer** out);
/* Waits for the optimizer's queued work on a device, frees the state and deletes scratch files. */
LT_API void lt_optimizer_destroy(lt_optimizer* optimizer);

/* Adds a group with its rule's default hyper-parameters. *group (may be NULL) gets its number, from 0. options NULL:
 * the defaults. */
LT_API lt_status lt_optimizer_add_group(lt_optimizer* optimizer, const lt_group_options* options, int32_t* group);
/* Sets or reads a hyper-parameter by its name, one of lt_hyper_names(); flags are 0 or 1. A value takes effect with the
 * next step. LT_INVALID_ARGUMENT if it is out of range, or if it would change which states a group with parameters has:
 * amsgrad, centered, nesterov of Adam (then NAdam), and whether RMSprop's momentum is 0. */
LT_API lt_status lt_optimizer_set(lt_optimizer* optimizer, int32_t group, const char* name, double value);
LT_API lt_status lt_optimizer_get(const lt_optimizer* optimizer, int32_t group, const char* name, double* value);

/* Registers a parameter, which the optimizer borrows, and allocates its state as zeros (under a memory budget, in its
 * first step). *param (may be NULL) gets its number, counted from 0 over all groups. LT_INVALID_ARGUMENT for a type,
 * size or layout that cannot be stepped, such as two elements at one address. */
LT_API lt_status lt_optimizer_add_param(lt_optimizer* optimizer, int32_t group, const lt_tensor* tensor,
                                        int64_t* param);
/* Tells the optimizer that the parameter's memory moved. Sizes must be the same; type and strides may differ. Keeps
 * state. */
LT_API lt_status lt_optimizer_rebind(lt_optimizer* optimizer, int64_t param, const lt_tensor* tensor);

/* ---- Stepping -------------------------------------------------------------------------------------------------- */

/* Steps all parameters once, in place. gradients[count]: one for each parameter, in the order of their numbers;
 * borrowed for the call or, on a device, until the step is done there. options NULL: the defaults; report NULL: not
 * wanted.
 *
 * For parameters on a device the step is queued when the call returns, and work queued later on the stream sees the
 * final parameters.
 *
 * Either all parameters and states are stepped or none, even after a failure. State on disk makes two exceptions. A
 * chunk that cannot be written stays in RAM: the step is complete, and LT_IO_ERROR says so. A chunk that cannot be
 * read, or a shortage of memory, can stop the step half-way (LT_IO_ERROR, LT_OUT_OF_MEMORY): each block of a parameter
 * and its state are then both as before or both as after the step, and later steps continue from there. */
LT_API lt_status lt_optimizer_step(lt_optimizer* optimizer, const lt_gradient* gradients, int64_t count,
                                   const lt_step_options* options, lt_step_report* report);

/* Computes the norm of these gradients, passed as for lt_optimizer_step, and whether all are finite. Reads them once;
 * writes and keeps nothing. norm_type: 2, or INFINITY for the largest magnitude. Sums are exact: the norm does not
 * depend on threads, instruction set, device or how tensors are cut. On a device, waits for the stream. */
LT_API lt_status lt_optimizer_clip_grad_norm(lt_optimizer* optimizer, const lt_gradient* gradients, int64_t count,
                                             double max_norm, double norm_type, const lt_step_options* options,
                                             lt_clip_report* report);
/* Like lt_optimizer_clip_grad_norm, but no call waits for the norm: pass *clip in the options of the step. On CUDA the
 * read is queued on options->stream, and the step finds the factor on the device; elsewhere the norm is known when the
 * call returns. Gradients must stay until the step has read them. *norm, a float32 in memory of the parameters' device,
 * gets the norm there; NULL: not wanted. The caller owns *clip: pass it to lt_queued_clip_destroy; NULL after a
 * failure. */
LT_API lt_status lt_optimizer_queue_clip_grad_norm(lt_optimizer* optimizer, const lt_gradient* gradients, int64_t count,
                                                   double max_norm, double norm_type, const lt_step_options* options,
                                                   float* norm, lt_queued_clip** clip);
/* Waits for the norm, and reports it. The optimizer must still exist. */
LT_API lt_status lt_queued_clip_wait(lt_queued_clip* clip, lt_clip_report* report);
/* Call it before or after the step that uses the clip, and before the optimizer is destroyed. NULL: does nothing. */
LT_API void lt_queued_clip_destroy(lt_queued_clip* clip);

/* Prepares the next replay of a CUDA graph that holds a step. (A step on a stream that is being captured is recorded,
 * not executed.) Counts a step and queues, on options->stream, the replay's inputs: its number and the current
 * hyper-parameters. A replay that was not prepared changes nothing, and the next call fails and says so. All state must
 * be in device memory. LT_INVALID_ARGUMENT if no step has been recorded, or if the last prepared replay was not
 * taken. */
LT_API lt_status lt_optimizer_prepare_replay(lt_optimizer* optimizer, const lt_step_options* options);

/* For rules that evaluate other weights than they train (schedulefree): moves all parameters to the evaluation weights
 * (1), or back to the training weights (0). Parameters that are already there stay, as do parameters of other rules.
 * Steps of a parameter with evaluation weights are refused. Waits for `stream` (as in lt_step_options). After a failure
 * the optimizer knows which parameters have moved, and the next call moves the others. */
LT_API lt_status lt_optimizer_set_evaluating(lt_optimizer* optimizer, int32_t evaluating, void* stream);
LT_API lt_status lt_optimizer_get_evaluating(const lt_optimizer* optimizer, int64_t param, int32_t* evaluating);
/* Declares which weights the parameter has now, without moving it. Call it after loading weights: files hold only
 * state. */
LT_API lt_status lt_optimizer_mark_evaluating(lt_optimizer* optimizer, int64_t param, int32_t evaluating);

/* Takes up to `bytes` more of device memory and queues copies of the next step's streamed state into it, after the work
 * now queued on `stream`; the step gives the memory back. Does not wait. *taken (may be NULL) gets the bytes; 0 if
 * memory is short or no state streams to a device, which is not a failure. */
LT_API lt_status lt_optimizer_prefetch(lt_optimizer* optimizer, int64_t bytes, void* stream, int64_t* taken);
/* Moves state to the host until at least `bytes` of device memory are free (or all state is out), and waits for that.
 * *freed (may be NULL) gets the bytes; 0 for state in host memory. */
LT_API lt_status lt_optimizer_demote(lt_optimizer* optimizer, int64_t bytes, int64_t* freed);
/* Waits until all queued work of steps is done, including state that streams back to the host. */
LT_API lt_status lt_optimizer_synchronize(lt_optimizer* optimizer);

/* Reports the memory of state and the steps taken. Waits for a pending step. */
LT_API lt_status lt_optimizer_report(const lt_optimizer* optimizer, lt_memory_report* out);

/* ---- State: calls wait for what is queued, and copy to and from host memory of the caller ---------------------- */

/* Shows state k of a parameter, from 0 in the rule's order. LT_INVALID_ARGUMENT if it has no such state (yet). */
LT_API lt_status lt_optimizer_state(const lt_optimizer* optimizer, int64_t param, int32_t k, lt_state_view* out);
/* Decodes state k to row-major float [numel], and encodes it from there as a step would. A round trip may change
 * dynamic8 codes; to copy state exactly, read and write it. */
LT_API lt_status lt_optimizer_export_state(const lt_optimizer* optimizer, int64_t param, int32_t k, float* out);
LT_API lt_status lt_optimizer_import_state(lt_optimizer* optimizer, int64_t param, int32_t k, const float* in);
/* Copies state k as it is stored, wherever it lives: codes [numel] of code_bits each, and scales [rows][scales_per_row]
 * (may be NULL if the codec has none). Writing does not set the step count. If a disk fails half-way through a write
 * (or import_state), part of the state is old, and calls refuse it until it is written or loaded again. */
LT_API lt_status lt_optimizer_read_state(const lt_optimizer* optimizer, int64_t param, int32_t k, void* codes,
                                         float* scales);
LT_API lt_status lt_optimizer_write_state(lt_optimizer* optimizer, int64_t param, int32_t k, const void* codes,
                                          const float* scales);
/* Allocates all states that the parameter can have, so that they can be written before its first step. */
LT_API lt_status lt_optimizer_allocate_state(lt_optimizer* optimizer, int64_t param);
/* The number of steps that a parameter has taken. Set it last when restoring state: 0 means that the state is empty. */
LT_API lt_status lt_optimizer_get_steps(const lt_optimizer* optimizer, int64_t param, int64_t* steps);
LT_API lt_status lt_optimizer_set_steps(lt_optimizer* optimizer, int64_t param, int64_t steps);

/* ---- Files ----------------------------------------------------------------------------------------------------- */

/* Writes all state to a file, durably and all or nothing, straight from wherever it lives. metadata: any text, stored
 * in the file; NULL: none. After LT_IO_ERROR an existing file is untouched (or lt_last_error() says that the new file
 * is in place). Hyper-parameters, rounding and seed are not in the file. */
LT_API lt_status lt_optimizer_save(const lt_optimizer* optimizer, const char* path, const char* metadata);
/* Begins a save of the current state: a thread of the library writes the file while steps go on. Before a step changes
 * state that is not written yet, it copies that state, chunk by chunk: at most copy_bytes, or one chunk if that is
 * more; -1: no limit. A step that finds no room waits for the writer. LT_SAVE_COPY_BYTES is the default of the other
 * interfaces. Any failure leaves an existing file untouched; lt_save_wait() returns the failure or, if nobody has
 * waited, the next save does, without saving. A save waits for the one before, and lt_optimizer_destroy waits for a
 * running save; lt_optimizer_load is refused during one. The caller owns *save: pass it to lt_save_destroy; NULL after
 * a failure. */
#define LT_SAVE_COPY_BYTES ((int64_t)256 << 20)
LT_API lt_status lt_optimizer_save_async(const lt_optimizer* optimizer, const char* path, const char* metadata,
                                         int64_t copy_bytes, lt_save** save);
/* Waits until the file is written, for at most `seconds`; a negative number sets no limit. *done (may be NULL): 0 on
 * timeout, else 1. Returns the save's failure, if any. Any thread; the optimizer may be gone. */
LT_API lt_status lt_save_wait(const lt_save* save, double seconds, int32_t* done);
/* Neither waits for the save nor ends it. NULL: does nothing. */
LT_API void lt_save_destroy(lt_save* save);
/* Reads a file written by an optimizer with the same rule, parameters and state formats. The whole file is checked
 * before anything changes; a disk that fails after that has the effect of a failed lt_optimizer_write_state. *metadata
 * (may be NULL) gets the text, valid until the next load or destroy of this optimizer. */
LT_API lt_status lt_optimizer_load(lt_optimizer* optimizer, const char* path, const char** metadata);

#ifdef __cplusplus
}
#endif

#endif /* LOWTIDE_LOWTIDE_H_ */
