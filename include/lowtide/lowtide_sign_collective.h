/* Lowtide's C interface to the sign collective (C11): W processes send one bit per value, and all get the same exact
 * majority, or the mean of signs with scales, over two functions that the caller provides. sign_collective.h describes
 * the rounds and the failures that each guards against.
 *
 * The conventions of lowtide.h hold, and:
 *  - One thread at a time uses a collective, and all ranks make the same calls in the same order. Calls block until all
 *    ranks have joined.
 *  - A call that fails on all ranks alike (LT_INVALID_ARGUMENT: they made different calls; LT_IO_ERROR: messages were
 *    damaged) has changed nothing, and the collective stays usable. If the transport fails, all later calls of the
 *    collective fail with LT_IO_ERROR, too: make a new transport and a new collective. */
#ifndef LOWTIDE_LOWTIDE_SIGN_COLLECTIVE_H_
#define LOWTIDE_LOWTIDE_SIGN_COLLECTIVE_H_

#include <stdint.h>

#include "lowtide/export.h"
#include "lowtide/lowtide.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum lt_sign_algorithm {
  LT_SIGN_AUTO = 0,      /* the faster by the cost model */
  LT_SIGN_ONE_PHASE = 1, /* (n / 8) (W - 1) bytes, one latency less */
  LT_SIGN_TWO_PHASE = 2  /* 2 (n / 8) (W - 1) / W bytes */
} lt_sign_algorithm;

/* Sends and receives, and blocks until both are done. all_to_all: the part of rank d's `receive` from r * bytes on is
 * the part of rank r's `send` from d * bytes on. all_gather: receive[r * bytes ...] of every rank = send of rank r.
 * Called in the thread of the collective's call; send and receive belong to the collective. Returns 0, or after a
 * failure or timeout another number, an errno if there is one. */
typedef int32_t (*lt_sign_transfer)(void* context, const void* send, void* receive, int64_t bytes);

typedef struct lt_sign_transport {
  int64_t struct_size;
  int32_t rank, size;
  void* context; /* passed to both functions; borrowed as long as the collective lives */
  lt_sign_transfer all_to_all, all_gather;
} lt_sign_transport;
#define LT_SIGN_TRANSPORT_INIT \
  { sizeof(lt_sign_transport), 0, 1, 0, 0, 0 }

/* The same on all ranks, except weight, threads and cpu_target. */
typedef struct lt_sign_collective_options {
  int64_t struct_size;
  const char* ties;  /* "hash", "plus", "minus", "zero", "previous"; NULL: "hash" */
  uint64_t seed;     /* for "hash" */
  int32_t algorithm; /* an lt_sign_algorithm */
  int32_t commit;    /* 1; 0 saves the latency of the last round, but one damaged message can then make ranks
                        disagree */
  double latency_s, bytes_per_s; /* the transport's, for LT_SIGN_AUTO; 0: the first vote measures them */
  int64_t weight;                /* votes of this rank, unless a ballot says otherwise */
  int32_t threads;               /* the caller included; 0: one per core */
  const char* cpu_target;        /* NULL: the best for this CPU */
} lt_sign_collective_options;
#define LT_SIGN_COLLECTIVE_OPTIONS_INIT \
  { sizeof(lt_sign_collective_options), 0, 0, LT_SIGN_AUTO, 1, 0, 0, 1, 0, 0 }

/* A rank's part of one call. Pointers are borrowed for the call and may point into the result. "Compared": ranks that
 * differ in the field are refused before anything else is sent. */
typedef struct lt_sign_ballot {
  int64_t struct_size;
  int64_t count;          /* signs; compared */
  const void* bits;       /* [(count + 7) / 8] bytes; sign i is bit i % 8 of byte i / 8, 1 for + */
  const void* presence;   /* [(count + 511) / 512] bytes: a bit for 64 signs; NULL on all ranks: all present */
  const uint16_t* scales; /* for a mean: bfloat16 [(count + 1023) / 1024], finite and not negative */
  const void* previous;   /* for ties "previous": the earlier result */
  int32_t dtype;          /* an lt_dtype, of the values behind the signs; compared */
  int32_t nonfinite;      /* 1: this rank has a NaN or an infinity, so nothing is applied anywhere */
  int32_t failed;         /* 1: this rank cannot take part, so nothing is applied anywhere */
  uint64_t step, digest;  /* compared; digest: a hash of whatever else must agree */
  uint64_t first_index;   /* index of sign 0 in the whole, a multiple of 1024; compared */
  int64_t weight;         /* votes; 0: none, and the bits are not read; -1: the collective's weight */
  /* A vote in parts, one call each: the number of parts before this one (0: it begins), and 1 if another follows;
   * compared. Results are provisional until the last part is applied, and void if it is not or if a call fails. Not for
   * a mean. */
  int32_t part, more;
} lt_sign_ballot;
#define LT_SIGN_BALLOT_INIT \
  { sizeof(lt_sign_ballot), 0, 0, 0, 0, 0, LT_F32, 0, 0, 0, 0, 0, -1, 0, 0 }

/* The caller's memory for the result, with the sizes of the ballot; written only if the result is applied. */
typedef struct lt_sign_result {
  int64_t struct_size;
  void* bits;
  void* presence;   /* if ballots have presence */
  void* zeros;      /* for ties "zero": laid out like bits, 1 for equal votes */
  uint16_t* scales; /* for a mean */
} lt_sign_result;
#define LT_SIGN_RESULT_INIT \
  { sizeof(lt_sign_result), 0, 0, 0, 0 }

/* A ballot that was left out: the signs in the shard of rank `owner` were voted on without it; owner -1: all signs. */
typedef struct lt_sign_rejected {
  int32_t sender, owner;
  const char* reason;
} lt_sign_rejected;

/* The outcome of a call. Set struct_size with the macro first. The collective owns the arrays, valid until its next
 * call. */
typedef struct lt_sign_outcome {
  int64_t struct_size;
  int32_t applied;          /* 0: the ranks in nonfinite or failed kept it from being applied */
  int32_t algorithm;        /* the lt_sign_algorithm that was used */
  const int32_t* nonfinite; /* [nonfinite_count] ranks whose ballot reported this */
  int64_t nonfinite_count;
  const int32_t* failed; /* [failed_count] ranks that could not take part */
  int64_t failed_count;
  const lt_sign_rejected* rejected;
  int64_t rejected_count;
  int64_t payload_sent, payload_received, control_sent, control_received; /* bytes to and from other ranks */
  double announce_s, ballots_s, vote_s, results_s, confirm_s, measure_s;  /* seconds of each round; 0: it did not run */
} lt_sign_outcome;
#define LT_SIGN_OUTCOME_INIT \
  { sizeof(lt_sign_outcome), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0 }

/* Handles: the caller owns them and gives each to its destroy function once; NULL there does nothing. */
typedef struct lt_sign_collective lt_sign_collective;
typedef struct lt_sign_residual lt_sign_residual;

/* Makes a collective; *out is NULL after a failure. Communicates nothing. The transport structs are read during the
 * call. between: NULL, or for nodes of several ranks the transport between ranks with the same rank inside their nodes;
 * `transport` then connects the ranks of a node. options NULL: the defaults. */
LT_API lt_status lt_sign_collective_create(const lt_sign_transport* transport, const lt_sign_transport* between,
                                           const lt_sign_collective_options* options, lt_sign_collective** out);
/* Communicates nothing; the transports' contexts may be freed afterwards. */
LT_API void lt_sign_collective_destroy(lt_sign_collective* collective);

/* Votes: the majority of all ballots goes to result. outcome may be NULL. A rank with wrong arguments takes part as
 * failed, and gets LT_INVALID_ARGUMENT. A failed call changes nothing on any rank that returns from it, with one
 * exception: if a rank is lost in the last round (LT_IO_ERROR), others may have applied the result. */
LT_API lt_status lt_sign_vote(lt_sign_collective* collective, const lt_sign_ballot* ballot,
                              const lt_sign_result* result, lt_sign_outcome* outcome);
/* Like a vote, but computes the weighted mean of sign times scale, plus the remainder of earlier means, as signs and
 * scales again. The residual is borrowed; it changes only if the mean is applied. Not with `between`. */
LT_API lt_status lt_sign_mean(lt_sign_collective* collective, const lt_sign_ballot* ballot,
                              const lt_sign_result* result, lt_sign_residual* residual, lt_sign_outcome* outcome);
/* The ranks that the error of the collective's last call named as its cause; valid until the next call. */
LT_API lt_status lt_sign_collective_error_ranks(const lt_sign_collective* collective, const int32_t** ranks,
                                                int64_t* count);

/* Makes the residual of means for this rank's shard of `count` signs, zero at first. state: its format, "fp32", "bf16"
 * or "dynamic8". One thread at a time. */
LT_API lt_status lt_sign_residual_create(int64_t count, int32_t rank, int32_t size, const char* state,
                                         lt_sign_residual** out);
LT_API void lt_sign_residual_destroy(lt_sign_residual* residual);
/* The first sign of the shard, its number of signs, and the bytes of its state as stored. Each may be NULL. */
LT_API lt_status lt_sign_residual_shape(const lt_sign_residual* residual, int64_t* first, int64_t* count,
                                        int64_t* bytes);
/* Copies the residual to or from the caller's memory: as it is stored, or as float values [count]. Replacing values
 * encodes them, which rounds if the format does. */
LT_API lt_status lt_sign_residual_read(const lt_sign_residual* residual, void* out);
LT_API lt_status lt_sign_residual_replace(lt_sign_residual* residual, const void* in);
LT_API lt_status lt_sign_residual_read_values(const lt_sign_residual* residual, float* out);
LT_API lt_status lt_sign_residual_replace_values(lt_sign_residual* residual, const float* in);

#ifdef __cplusplus
}
#endif

#endif /* LOWTIDE_LOWTIDE_SIGN_COLLECTIVE_H_ */
