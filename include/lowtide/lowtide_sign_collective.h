/* Lowtide's C interface of the sign collective (sign_collective.h says what it does): W processes send one bit per
 * value and all get the same exact majority, or the mean of signs with scales, over two functions of the caller's.
 *
 * Conventions are those of lowtide.h. A collective is used by one thread at a time; all ranks make the same calls in
 * the same order. Calls block.
 */
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

/* Sends and receives; blocks until done. all_to_all: receive[r * bytes ...] of rank d = send[d * bytes ...] of rank r.
 * all_gather: receive[r * bytes ...] of every rank = send of rank r. Returns 0, or another number (an errno if there is
 * one) if it failed or ran out of time: the call then returns LT_IO_ERROR, and later ones of the collective do so too.
 */
typedef int32_t (*lt_sign_transfer)(void* context, const void* send, void* receive, int64_t bytes);

typedef struct lt_sign_transport {
  int64_t struct_size;
  int32_t rank, size;
  void* context; /* of both functions; borrowed as long as the collective lives */
  lt_sign_transfer all_to_all, all_gather;
} lt_sign_transport;
#define LT_SIGN_TRANSPORT_INIT \
  { sizeof(lt_sign_transport), 0, 1, 0, 0, 0 }

/* The same on all ranks but for weight, threads and cpu_target. */
typedef struct lt_sign_collective_options {
  int64_t struct_size;
  const char* ties;  /* "hash", "plus", "minus", "zero", "previous"; NULL = "hash" */
  uint64_t seed;     /* of "hash" */
  int32_t algorithm; /* an lt_sign_algorithm */
  int32_t commit;    /* 0 saves a latency, and lets one damaged message of the last round have ranks disagree; 1 */
  double latency_s, bytes_per_s; /* of the transport, for LT_SIGN_AUTO; 0: measured by the first vote */
  int64_t weight;                /* votes of this rank, where a ballot says none */
  int32_t threads;               /* 0 = one per core */
  const char* cpu_target;        /* NULL = best for this CPU */
} lt_sign_collective_options;
#define LT_SIGN_COLLECTIVE_OPTIONS_INIT \
  { sizeof(lt_sign_collective_options), 0, 0, LT_SIGN_AUTO, 1, 0, 0, 1, 0, 0 }

/* What one rank brings to one call. Borrowed for the call. */
typedef struct lt_sign_ballot {
  int64_t struct_size;
  int64_t count;          /* signs */
  const void* bits;       /* [(count + 7) / 8] bytes; sign i is bit i % 8 of byte i / 8, 1 for + */
  const void* presence;   /* [(count + 511) / 512] bytes: a bit for 64 signs; NULL on all ranks: all present */
  const uint16_t* scales; /* of a mean: bfloat16 [(count + 1023) / 1024] */
  const void* previous;   /* ties "previous": the earlier result; may be the result */
  int32_t dtype;          /* an lt_dtype, of what the signs are of: compared */
  int32_t nonfinite;      /* 1: this rank has a NaN or an infinity, so nothing is applied anywhere */
  int32_t failed;         /* 1: this rank cannot take part, so nothing is applied anywhere */
  uint64_t step, digest;  /* compared; digest: of whatever else must agree */
  uint64_t first_index;   /* compared; of sign 0 in the whole, a multiple of 1024 */
  int64_t weight;         /* votes; -1: the collective's */
} lt_sign_ballot;
#define LT_SIGN_BALLOT_INIT \
  { sizeof(lt_sign_ballot), 0, 0, 0, 0, 0, LT_F32, 0, 0, 0, 0, 0, -1 }

/* The caller's memory, sized as that of a ballot; written only when the result is applied. */
typedef struct lt_sign_result {
  int64_t struct_size;
  void* bits;
  void* presence;   /* where ballots have presence */
  void* zeros;      /* ties "zero": as bits, 1 where votes were equal */
  uint16_t* scales; /* of a mean */
} lt_sign_result;
#define LT_SIGN_RESULT_INIT \
  { sizeof(lt_sign_result), 0, 0, 0, 0 }

/* A ballot that was left out for the signs of owner's shard; owner -1: for all signs. */
typedef struct lt_sign_rejected {
  int32_t sender, owner;
  const char* reason;
} lt_sign_rejected;

/* How a call went. Arrays are the collective's, until its next call. Set struct_size with the macro before the call. */
typedef struct lt_sign_outcome {
  int64_t struct_size;
  int32_t applied;   /* 0: some rank has values that are not finite, or cannot take part */
  int32_t algorithm; /* an lt_sign_algorithm */
  const int32_t* nonfinite;
  int64_t nonfinite_count;
  const int32_t* failed;
  int64_t failed_count;
  const lt_sign_rejected* rejected;
  int64_t rejected_count;
  int64_t payload_sent, payload_received, control_sent, control_received; /* bytes to and from other ranks */
  double announce_s, ballots_s, vote_s, results_s, confirm_s, measure_s;
} lt_sign_outcome;
#define LT_SIGN_OUTCOME_INIT \
  { sizeof(lt_sign_outcome), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0 }

typedef struct lt_sign_collective lt_sign_collective;
typedef struct lt_sign_residual lt_sign_residual;

/* between: NULL, or transports of two levels: `transport` inside a node, and `between` nodes among those with the same
 * rank inside. options may be NULL. Communicates nothing. */
LT_API lt_status lt_sign_collective_create(const lt_sign_transport* transport, const lt_sign_transport* between,
                                           const lt_sign_collective_options* options, lt_sign_collective** out);
LT_API void lt_sign_collective_destroy(lt_sign_collective* collective);

/* The majority. outcome may be NULL. A failed call changes nothing, on any rank that returns from it, but for one that
 * loses the others in the last round (LT_IO_ERROR): see sign_collective.h. */
LT_API lt_status lt_sign_vote(lt_sign_collective* collective, const lt_sign_ballot* ballot,
                              const lt_sign_result* result, lt_sign_outcome* outcome);
/* The mean of sign times scale plus what earlier means left out, as signs and scales. */
LT_API lt_status lt_sign_mean(lt_sign_collective* collective, const lt_sign_ballot* ballot,
                              const lt_sign_result* result, lt_sign_residual* residual, lt_sign_outcome* outcome);
/* The ranks that the collective's last call named as the cause of its failure; valid until its next call. */
LT_API lt_status lt_sign_collective_error_ranks(const lt_sign_collective* collective, const int32_t** ranks,
                                                int64_t* count);

/* What the mean leaves out of this rank's shard; zero at first. state: "fp32", "bf16", "dynamic8". */
LT_API lt_status lt_sign_residual_create(int64_t count, int32_t rank, int32_t size, const char* state,
                                         lt_sign_residual** out);
LT_API void lt_sign_residual_destroy(lt_sign_residual* residual);
/* The shard, and the bytes of its state as stored. Each may be NULL. */
LT_API lt_status lt_sign_residual_shape(const lt_sign_residual* residual, int64_t* first, int64_t* count,
                                        int64_t* bytes);
/* As stored, and as numbers [count]. */
LT_API lt_status lt_sign_residual_read(const lt_sign_residual* residual, void* out);
LT_API lt_status lt_sign_residual_replace(lt_sign_residual* residual, const void* in);
LT_API lt_status lt_sign_residual_read_values(const lt_sign_residual* residual, float* out);
LT_API lt_status lt_sign_residual_replace_values(lt_sign_residual* residual, const float* in);

#ifdef __cplusplus
}
#endif

#endif /* LOWTIDE_LOWTIDE_SIGN_COLLECTIVE_H_ */
