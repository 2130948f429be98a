/* Signs of values as bits, and their majorities (C11). The conventions of lowtide.h hold, and:
 *  - Without a device, values and bits are in host memory, and any number of threads may make calls at once.
 *  - With a device (lowtide_device.h), they are in memory that it can address; the call queues work there and returns.
 *    One thread at a time uses an lt_device.
 *  - All memory is the caller's, borrowed for the call or, on a device, until the queued work is done. A call that
 *    fails has written and queued nothing.
 *  - A sign is one bit: 1 for +, which means x >= 0. Both zeros are +; a NaN of either sign is -.
 *  - `count` signs, 0 to 2^60, take ceil(count / 8) bytes, of any alignment; bits after the last are 0.
 *  - All computation uses integers: results are the same bits on every machine. */
#ifndef LOWTIDE_LOWTIDE_SIGN_H_
#define LOWTIDE_LOWTIDE_SIGN_H_

#include "lowtide/lowtide.h"
#include "lowtide/lowtide_device.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The position of sign i in byte i / 8. Values never change. */
typedef enum lt_bit_order {
  LT_BITS_LITTLE = 0, /* bit i % 8 */
  LT_BITS_BIG = 1     /* bit 7 - i % 8 */
} lt_bit_order;

/* The sign that wins if + and - have equally many votes. Values never change. */
typedef enum lt_ties {
  LT_TIES_HASH = 0, /* a fair bit hashed from seed, step and the sign's index in the whole */
  LT_TIES_PLUS = 1,
  LT_TIES_MINUS = 2,
  LT_TIES_ZERO = 3,    /* the sign -, marked in zeros */
  LT_TIES_PREVIOUS = 4 /* the sign in an earlier result */
} lt_ties;

typedef struct lt_sign_options {
  int64_t struct_size;
  int32_t bit_order; /* an lt_bit_order */
  int32_t threads;   /* the caller included; 0: one per core; ignored on devices */
  lt_device* device; /* where values and bits are; NULL: host memory */
  void* queue;       /* a queue of the device (sycl::queue*, cudaStream_t); NULL: its own, lt_device_queue() */
} lt_sign_options;
#define LT_SIGN_OPTIONS_INIT \
  { sizeof(lt_sign_options), LT_BITS_LITTLE, 0, 0, 0 }

typedef struct lt_majority_options {
  int64_t struct_size;
  int32_t bit_order;       /* an lt_bit_order, for ballots and results */
  int32_t threads;         /* the caller included; 0: one per core */
  int64_t ties;            /* an lt_ties */
  uint64_t seed, step;     /* for LT_TIES_HASH */
  uint64_t offset;         /* for LT_TIES_HASH: index of sign 0 in the whole, of which this may be a part */
  const uint32_t* weights; /* [voters] votes of each, less than 2^31 in total; NULL: one each. 0: absent; the ballot is
                              not read */
  const void* previous;    /* for LT_TIES_PREVIOUS: laid out like a ballot; may be the result */
  lt_device* device;       /* where ballots, result, zeros and previous are; NULL: host memory */
  void* queue;             /* a queue of the device; NULL: its own */
} lt_majority_options;
#define LT_MAJORITY_OPTIONS_INIT \
  { sizeof(lt_majority_options), LT_BITS_LITTLE, 0, LT_TIES_HASH, 0, 0, 0, 0, 0, 0, 0 }

/* Packs the signs of values[count] of dtype (an lt_dtype), contiguous and aligned to an element, into bits. bits_bytes
 * must be ceil(count / 8): this catches an element count passed as a byte count. bits share no byte with values.
 * options NULL: the defaults. */
LT_API lt_status lt_sign_pack(const void* values, int32_t dtype, int64_t count, void* bits, int64_t bits_bytes,
                              const lt_sign_options* options);

/* Unpacks signs to values[count] of +1 and -1, and 0 where `zeros` (NULL, or laid out like bits) has a 1. bits_bytes as
 * above, for bits and zeros. values share no byte with them. options NULL: the defaults. */
LT_API lt_status lt_sign_unpack(const void* bits, int64_t bits_bytes, void* values, int32_t dtype, int64_t count,
                                const void* zeros, const lt_sign_options* options);

/* Finds the weighted majority of ballots[voters], 1 to 65,535 of them with bits_bytes each; the array of pointers is in
 * host memory, like the weights, and borrowed for the call. A ballot is NULL only if its voter is absent. result:
 * bits_bytes; may be one of the ballots, but otherwise shares no byte with any. zeros: for LT_TIES_ZERO, laid out like
 * the result and separate from everything else, gets a 1 for each tie; else NULL. options NULL: the defaults. */
LT_API lt_status lt_sign_majority(const void* const* ballots, int64_t voters, int64_t count, void* result,
                                  int64_t bits_bytes, void* zeros, const lt_majority_options* options);

#ifdef __cplusplus
}
#endif

#endif /* LOWTIDE_LOWTIDE_SIGN_H_ */
