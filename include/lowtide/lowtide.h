/* Lowtide's C interface (C11): optimizers with small state, stepped in place on memory that the caller owns.
 *
 * Conventions
 *  1. Every function that can fail returns an lt_status; 0 is success. After a failure lt_last_error() says what was
 * got and what was wanted. A failed call changes nothing; with state on disk see lt_optimizer_step.
 *  2. Handles are opaque, made by *_create and freed by *_destroy, which accepts NULL.
 *  3. Option structs begin with struct_size: set it with the LT_..._INIT macro, and fields added later keep their
 * defaults.
 *  4. Counts and sizes are int64_t, strides count elements. Tensors are borrowed, never owned.
 *  5. One optimizer is used by one thread at a time; different ones are independent.
 *  6. Nothing here prints, exits, aborts, or throws across the border.
 *
 * Not supported: complex and integer tensors. Memory of devices without their compilers: lowtide_device.h.
 */
#ifndef LOWTIDE_LOWTIDE_H_
#define LOWTIDE_LOWTIDE_H_

#include <stdint.h>

#include "lowtide/export.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Status codes. Gaps are left for later kinds; values never change. */
typedef enum lt_status {
  LT_OK = 0,
  LT_INVALID_ARGUMENT = 1, /* a value is wrong; lt_last_error() says which */
  LT_OUT_OF_MEMORY = 10,
  LT_UNSUPPORTED = 20, /* valid, but not in this build or on this machine */
  LT_IO_ERROR = 30,    /* a file, disk or transport failed */
  LT_DEVICE_LOST = 40, /* the device can do nothing more in this process */
  LT_INTERNAL = 90     /* a bug of this library */
} lt_status;

/* Element types of parameters and gradients. */
typedef enum lt_dtype { LT_F32 = 0, LT_BF16 = 1, LT_F16 = 2 } lt_dtype;

/* What a step does about non-finite gradients (NaN, infinity, magnitudes of 2^62 and above). */
typedef enum lt_nonfinite {
  LT_NONFINITE_SKIP = 0,     /* change nothing, count a skipped step */
  LT_NONFINITE_RAISE = 1,    /* change nothing, return LT_INVALID_ARGUMENT */
  LT_NONFINITE_PROPAGATE = 2 /* do not look */
} lt_nonfinite;

typedef struct lt_optimizer lt_optimizer;

/* A tensor. strides NULL means contiguous, row-major. */
typedef struct lt_tensor {
  void* data;
  int32_t dtype; /* an lt_dtype */
  int32_t ndim;
  const int64_t* sizes;   /* [ndim] */
  const int64_t* strides; /* [ndim] or NULL */
} lt_tensor;

/* A gradient of one step: sizes are its parameter's. data NULL: no gradient, the parameter is left alone. */
typedef struct lt_gradient {
  const void* data;
  int32_t dtype;          /* an lt_dtype */
  const int64_t* strides; /* [ndim of the parameter] or NULL; 0 allowed */
} lt_gradient;

/* Where state may live; no bit of any result depends on it. Of parameters in host memory, what does not fit into
 * ram_bytes lives in a scratch file and streams through RAM every step. Of parameters on a device, what does not fit
 * into device_bytes lives in pinned host memory (ram_bytes) and streams through the device; there disk must be NULL. */
typedef struct lt_memory_options {
  int64_t struct_size;
  int64_t ram_bytes;   /* for state, buffers included; -1: no limit */
  const char* disk;    /* directory for a scratch file that has no name and leaves nothing behind; NULL: no disk. That
                          it is one is checked at once, its room when the first step (or load) needs it */
  int64_t disk_bytes;  /* at most this much there; -1: no limit */
  int64_t chunk_bytes; /* unit of moving, a multiple of 4096; 0: chosen from the budget */
  /* For parameters on a device; must keep their defaults for those in host memory. */
  int64_t device_bytes; /* of its memory, for state, buffers included; -1: 7/8 of what is free when state is placed (of
                           all, where the driver does not tell) */
  int64_t managed;      /* 1: all state in managed (shared) memory, which the driver migrates; 0 */
  const char* transfer; /* how state that does not fit reaches the device: "copy", "zero_copy", "hybrid"; NULL: the
                       fastest of those that it can do, which is measured once and remembered */
  int64_t automatic; /* 1: instead of device_bytes (-1): all state begins in host memory, and as much as fits moves to
                        the device once steps have shown what else it holds, and back when memory gets short; 0 */
} lt_memory_options;
#define LT_MEMORY_OPTIONS_INIT \
  { sizeof(lt_memory_options), -1, 0, -1, 0, -1, 0, 0, 0 }

typedef struct lt_optimizer_options {
  int64_t struct_size;
  /* "adam", "adamw", "lion", "sgd", "adagrad", "rmsprop", "ademamix", "lamb", "lars"; NULL = "adamw" */
  const char* rule;
  const char* cpu_target; /* NULL = best for this CPU */
  int32_t nonfinite;      /* an lt_nonfinite */
  int32_t threads;        /* 0 = one per core */
  const lt_memory_options*
      memory; /* one budget for all groups without their own; NULL: no limit. Read during the call */
  /* Where parameters and gradients are. */
  const char* backend; /* "cpu" or another of lt_backends(); NULL = "cpu" */
  const char* device;  /* of the backend, as it names them ("gpu", "cpu" for sycl; "exact:0", "fast:1" for cuda: how it
                          computes, and the device's number); NULL = its best */
  void* stream;        /* a queue of the backend (sycl::queue*, cudaStream_t), whose device and context are those of all
                          steps; read during the call. NULL: the backend's own (for cuda, the legacy default stream) */
  /* For cuda: where device memory is taken from instead of the driver, both or none. allocate returns `bytes`
   * of it, aligned to 256 bytes, or NULL. They may be called in any call that gets this optimizer, on its thread, and
   * must not call back into it. */
  void* allocator_context;
  void* (*allocate)(void* allocator_context, int64_t bytes);
  void (*deallocate)(void* allocator_context, void* memory);
  uint64_t seed; /* of stochastic rounding, whose random bits depend on it, on the step and on the element alone */
} lt_optimizer_options;
#define LT_OPTIMIZER_OPTIONS_INIT \
  { sizeof(lt_optimizer_options), 0, 0, LT_NONFINITE_SKIP, 0, 0, 0, 0, 0, 0, 0, 0, 0 }

typedef struct lt_step_options {
  int64_t struct_size;
  /* The queue (sycl::queue*, in order; cudaStream_t) that the step of parameters on a device is ordered on: when the
   * call returns, the step is queued, and parameters are final for what is queued there next. NULL: the backend's own
   * queue; must be NULL for the CPU. */
  void* stream;
  double grad_scale;     /* every gradient is multiplied by this (as float32) before use, e.g. 1 / loss scale */
  int64_t assume_finite; /* 1: the caller has checked the gradients already; 0 */
  int64_t free_bytes; /* for lt_memory_options.automatic: bytes of device memory that nothing else needs now, counting
                         what the caller's allocator keeps unused; -1: what the driver calls free */
} lt_step_options;
#define LT_STEP_OPTIONS_INIT \
  { sizeof(lt_step_options), 0, 1.0, 0, -1 }

/* What has become of a step. Set struct_size with the macro before the call. */
typedef struct lt_step_report {
  int64_t struct_size;
  int64_t applied;         /* 0: skipped because of a non-finite gradient */
  int64_t nonfinite_param; /* the first parameter whose gradient was not finite; -1: none */
  int64_t pending;         /* 1: on this device that is not known yet. The next call that has to know settles it: a step
                              that changed nothing is not counted then, and with LT_NONFINITE_RAISE that call fails */
} lt_step_report;
#define LT_STEP_REPORT_INIT \
  { sizeof(lt_step_report), 0, -1, 0 }

typedef struct lt_group_options {
  int64_t struct_size;
  const char* state;               /* "fp32", "bf16", "dynamic8", "float8", "dynamic4", "mixed12"; NULL = "dynamic8" */
  int64_t min_quantized_numel;     /* parameters with fewer elements keep float32 state */
  const lt_memory_options* memory; /* this group's own budget; NULL: the optimizer's. Read during the call */
  const char* rounding; /* of states to their format: "nearest", "stochastic", or "auto": stochastic for averages with a
                           beta of 0.995 or more and for sums; NULL = "auto". "float8", "dynamic4" refuse "nearest" */
  const char* master;   /* of bfloat16 and float16 weights: "residual16", "residual8", "stochastic"; NULL: none */
} lt_group_options;
#define LT_GROUP_OPTIONS_INIT \
  { sizeof(lt_group_options), 0, 4096, 0, 0, 0 }

/* One state of one parameter, in the optimizer's memory, alive as long as the optimizer. A value is
 * map[code] * scale, with one scale per `block` elements of a row; scales is NULL where the codec has none. Under a
 * memory budget that it does not fit into, codes and scales are NULL: see lt_optimizer_read_state. */
typedef struct lt_state_view {
  const char* name;  /* "exp_avg", ...; a constant string */
  const char* codec; /* "dynamic8", ...; a constant string */
  void* codes;       /* [numel] of code_bits each; 4 bits: two to a byte, the first in the low half */
  float* scales;     /* [rows][scales_per_row] */
  int64_t numel, rows, scales_per_row;
  int32_t code_bits, block;
} lt_state_view;

/* What the state takes, where it is and what has moved: lowtide/report.def lists the fields with unit and meaning. Set
 * struct_size with the macro before the call. `transfer` is valid until the next report on this optimizer. */
typedef struct lt_memory_report {
  int64_t struct_size;
#define LT_REPORT_TEXT const char*
#define LT_REPORT_FIELD(type, name, unit, meaning) type name;
#include "lowtide/report.def"
#undef LT_REPORT_TEXT
} lt_memory_report;
#define LT_MEMORY_REPORT_INIT \
  { sizeof(lt_memory_report), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0 }

/* What one backend ("cpu", "sycl", "cuda") can do in this process. An array element: fields are never added. */
typedef struct lt_backend_report {
  const char* name;
  const char* detail; /* what it runs on, devices by name; or what is missing and how to get it */
  int32_t available;  /* 1: its kernels can run here and now */
} lt_backend_report;

/* "0.1.0" */
LT_API const char* lt_version(void);
/* A constant name, e.g. "invalid argument". */
LT_API const char* lt_status_name(lt_status status);
/* Text of this thread's last failure; "" if there was none. Valid until the thread's next failing call. */
LT_API const char* lt_last_error(void);
/* The system's error number (errno) of this thread's last failure, where it was LT_IO_ERROR and the system gave one;
 * else 0. */
LT_API int32_t lt_last_os_error(void);

/* Fills out[0..room) with what this installation can compute on; *count is how many there are, also where room is less
 * (room 0, out NULL: only the count). Texts are valid until this thread's next lt_backends(). Loads installed plug-ins
 * and asks their drivers. */
LT_API lt_status lt_backends(lt_backend_report* out, int32_t room, int32_t* count);

LT_API lt_status lt_optimizer_create(const lt_optimizer_options* options, lt_optimizer** out);
LT_API void lt_optimizer_destroy(lt_optimizer* optimizer);

/* Adds a group with the rule's default hyper-parameters; *group is its number, from 0. options may be NULL. */
LT_API lt_status lt_optimizer_add_group(lt_optimizer* optimizer, const lt_group_options* options, int32_t* group);
/* Sets or reads a hyper-parameter by name, "lr", "beta1", "weight_decay" ...: the members of Hyper in
 * lowtide/optimizer.h, of which the bools are 0 or 1 (docs/rules.md says which rule reads which). Before the group's
 * first parameter is to be set what decides which states there are: amsgrad, centered, nesterov of Adam (then NAdam),
 * and whether RMSprop's momentum is 0. */
LT_API lt_status lt_optimizer_set(lt_optimizer* optimizer, int32_t group, const char* name, double value);
LT_API lt_status lt_optimizer_get(const lt_optimizer* optimizer, int32_t group, const char* name, double* value);

/* Registers a parameter (borrowed) and allocates its state, zeroed (under a memory budget at its first step); *param is
 * its number, from 0 over all groups. */
LT_API lt_status lt_optimizer_add_param(lt_optimizer* optimizer, int32_t group, const lt_tensor* tensor,
                                        int64_t* param);
/* The parameter's memory moved; its sizes must be the same. */
LT_API lt_status lt_optimizer_rebind(lt_optimizer* optimizer, int64_t param, const lt_tensor* tensor);

/* Takes one step of all parameters: gradients[count], count = number of parameters. options NULL: the defaults; report
 * NULL: not wanted.
 *
 * With state on disk: a chunk that cannot be written stays in RAM, the step is complete, and LT_IO_ERROR says so; one
 * that cannot be read, or memory that is short meanwhile, can stop the step half way (LT_IO_ERROR, LT_OUT_OF_MEMORY):
 * then every block of a parameter and its state are both of before or both of after, and later steps go on from there.
 */
LT_API lt_status lt_optimizer_step(lt_optimizer* optimizer, const lt_gradient* gradients, int64_t count,
                                   const lt_step_options* options, lt_step_report* report);
/* A step on a stream that is being captured in a CUDA graph is recorded, not taken. Before each replay of the graph:
 * counts a step and queues, on options->stream, what the replay there needs: its number and the hyper-parameters as
 * they are now. All state must be in device memory. A replay without it changes nothing, and the next call fails to say
 * so. LT_INVALID_ARGUMENT if no step has been recorded, or the last one prepared has not been replayed. */
LT_API lt_status lt_optimizer_prepare_replay(lt_optimizer* optimizer, const lt_step_options* options);

/* Of state on a device; elsewhere there is nothing to do.
 * Takes up to `bytes` more of device memory and queues copies of streaming state of the next step into it, after what
 * is queued on `stream` so far; the step gives it back. *taken (may be NULL): the bytes, 0 if memory is short. */
LT_API lt_status lt_optimizer_prefetch(lt_optimizer* optimizer, int64_t bytes, void* stream, int64_t* taken);
/* Moves state to the host until at least `bytes` of device memory (or all there is) are free again, and waits for that.
 * *freed (may be NULL): the bytes. */
LT_API lt_status lt_optimizer_demote(lt_optimizer* optimizer, int64_t bytes, int64_t* freed);
/* Waits until all that steps have queued has happened, state that streams back to the host included. */
LT_API lt_status lt_optimizer_synchronize(lt_optimizer* optimizer);

/* State number k (from 0) of a parameter. LT_INVALID_ARGUMENT if there are fewer. */
LT_API lt_status lt_optimizer_state(const lt_optimizer* optimizer, int64_t param, int32_t k, lt_state_view* out);
/* State k decoded to row-major float [numel], and encoded from it. */
LT_API lt_status lt_optimizer_export_state(const lt_optimizer* optimizer, int64_t param, int32_t k, float* out);
LT_API lt_status lt_optimizer_import_state(lt_optimizer* optimizer, int64_t param, int32_t k, const float* in);
/* Copies state k as it is stored, wherever it lives: codes [numel] of code_bits each and scales [rows][scales_per_row]
 * (may be NULL where lt_state_view has none). write does not set steps. If a disk stops it (or import_state) half way,
 * part of the state is of before: it is refused until it is written or loaded again. */
LT_API lt_status lt_optimizer_read_state(const lt_optimizer* optimizer, int64_t param, int32_t k, void* codes,
                                         float* scales);
LT_API lt_status lt_optimizer_write_state(lt_optimizer* optimizer, int64_t param, int32_t k, const void* codes,
                                          const float* scales);
/* Allocates all states of the rule now, to be written. */
LT_API lt_status lt_optimizer_allocate_state(lt_optimizer* optimizer, int64_t param);
/* Steps a parameter has taken; to be set when state is restored. */
LT_API lt_status lt_optimizer_get_steps(const lt_optimizer* optimizer, int64_t param, int64_t* steps);
LT_API lt_status lt_optimizer_set_steps(lt_optimizer* optimizer, int64_t param, int64_t steps);

/* Writes all state to a file, durably and all or nothing, straight from wherever it lives. metadata: any text, kept
 * with it; NULL: none. After LT_IO_ERROR a file that was there before is untouched (or lt_last_error() says that the
 * new one is in place). */
LT_API lt_status lt_optimizer_save(const lt_optimizer* optimizer, const char* path, const char* metadata);
/* Reads such a file of an optimizer with the same rule, parameters and state formats. Everything in it is checked
 * before anything changes. *metadata (may be NULL): its text, valid until the next load or destroy of this optimizer.
 */
LT_API lt_status lt_optimizer_load(lt_optimizer* optimizer, const char* path, const char** metadata);

LT_API lt_status lt_optimizer_report(const lt_optimizer* optimizer, lt_memory_report* out);

#ifdef __cplusplus
}
#endif

#endif /* LOWTIDE_LOWTIDE_H_ */
