/* Signs of values in host memory as bits, and majorities of them (C11). Conventions of lowtide.h; nothing has a handle,
 * and any number of threads may make calls at a time.
 *
 * A sign is one bit: 1 for +, which means x >= 0: both zeros are +, a NaN of either sign is not. `count` signs, 0 to
 * 2^60, take ceil(count / 8) bytes, of any alignment; bits behind the last are 0. The same bits on every machine.
 */
#ifndef LOWTIDE_LOWTIDE_SIGN_H_
#define LOWTIDE_LOWTIDE_SIGN_H_

#include "lowtide/lowtide.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Where sign i is in byte i / 8. */
typedef enum lt_bit_order {
  LT_BITS_LITTLE = 0, /* bit i % 8 */
  LT_BITS_BIG = 1     /* bit 7 - i % 8 */
} lt_bit_order;

/* What a sign becomes for which + and - have equally many votes. */
typedef enum lt_ties {
  LT_TIES_HASH = 0, /* a fair bit of (seed, step, index of the sign in the whole) */
  LT_TIES_PLUS = 1,
  LT_TIES_MINUS = 2,
  LT_TIES_ZERO = 3,    /* -, and marked in zeros */
  LT_TIES_PREVIOUS = 4 /* that of an earlier result */
} lt_ties;

typedef struct lt_sign_options {
  int64_t struct_size;
  int32_t bit_order; /* an lt_bit_order */
  int32_t threads;   /* incl. the caller; 0 = one per core */
} lt_sign_options;
#define LT_SIGN_OPTIONS_INIT \
  { sizeof(lt_sign_options), LT_BITS_LITTLE, 0 }

typedef struct lt_majority_options {
  int64_t struct_size;
  int32_t bit_order;       /* an lt_bit_order, of all bits */
  int32_t threads;         /* incl. the caller; 0 = one per core */
  int64_t ties;            /* an lt_ties */
  uint64_t seed, step;     /* for LT_TIES_HASH */
  uint64_t offset;         /* for LT_TIES_HASH: index of sign 0 in the whole, of which this may be a part */
  const uint32_t* weights; /* [voters] votes of each, of a sum below 2^31; 0: absent, the ballot is not read. NULL: 1 */
  const void* previous;    /* for LT_TIES_PREVIOUS: as a ballot; may be the result */
} lt_majority_options;
#define LT_MAJORITY_OPTIONS_INIT \
  { sizeof(lt_majority_options), LT_BITS_LITTLE, 0, LT_TIES_HASH, 0, 0, 0, 0, 0 }

/* values: [count] of dtype (an lt_dtype), contiguous, aligned to an element. bits: bits_bytes bytes, which must be
 * ceil(count / 8); they share none with values. options may be NULL. */
LT_API lt_status lt_sign_pack(const void* values, int32_t dtype, int64_t count, void* bits, int64_t bits_bytes,
                              const lt_sign_options* options);

/* +1 and -1, and 0 where zeros (NULL, or as bits) has a 1. bits_bytes as above: of bits, and of zeros. */
LT_API lt_status lt_sign_unpack(const void* bits, int64_t bits_bytes, void* values, int32_t dtype, int64_t count,
                                const void* zeros, const lt_sign_options* options);

/* The weighted majority of ballots[voters], 1 to 65,535 of them, bits_bytes each; NULL only for one that is absent.
 * result: bits_bytes; may be a ballot, and otherwise shares no byte with one. zeros: for LT_TIES_ZERO as the result,
 * apart from everything else, 1 where there was a tie; else NULL. options may be NULL. */
LT_API lt_status lt_sign_majority(const void* const* ballots, int64_t voters, int64_t count, void* result,
                                  int64_t bits_bytes, void* zeros, const lt_majority_options* options);

#ifdef __cplusplus
}
#endif

#endif /* LOWTIDE_LOWTIDE_SIGN_H_ */
