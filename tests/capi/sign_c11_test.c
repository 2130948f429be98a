/* Signs through the C header by a C compiler. Returns 0, or the line of the first check that failed. */
#include "lowtide/lowtide_sign.h"

#include <string.h>

_Static_assert(sizeof(lt_sign_options) == 32 && sizeof(lt_majority_options) == 80, "no padding");
_Static_assert(LT_BITS_LITTLE == 0 && LT_BITS_BIG == 1, "numbers are part of the ABI");
_Static_assert(LT_TIES_HASH == 0 && LT_TIES_PLUS == 1 && LT_TIES_MINUS == 2 && LT_TIES_ZERO == 3 &&
                   LT_TIES_PREVIOUS == 4,
               "numbers are part of the ABI");

#define CHECK(condition) \
  if (!(condition)) return __LINE__

int lt_test_sign_c11(void);

int lt_test_sign_c11(void) {
  const float values[10] = {1, -1, 0, -0.f, 3, -4, 5, -6, -7, 8};
  float back[10];
  uint8_t bits[2], big[2], vote[2], zeros[2];
  const uint8_t other[2] = {0xff, 0x03}, none[2] = {0, 0};
  const void* ballots[3];
  uint32_t weights[3] = {2, 1, 0};
  lt_sign_options options = LT_SIGN_OPTIONS_INIT;
  lt_majority_options how = LT_MAJORITY_OPTIONS_INIT;
  int i;

  CHECK(lt_sign_pack(values, LT_F32, 10, bits, 2, NULL) == LT_OK && bits[0] == 0x5d && bits[1] == 0x02);
  options.bit_order = LT_BITS_BIG;
  options.threads = 1;
  CHECK(lt_sign_pack(values, LT_F32, 10, big, 2, &options) == LT_OK && big[0] == 0xba && big[1] == 0x40);
  CHECK(lt_sign_unpack(big, 2, back, LT_F32, 10, NULL, &options) == LT_OK);
  for (i = 0; i < 10; ++i) CHECK(back[i] == (values[i] >= 0 ? 1.f : -1.f));
  CHECK(lt_sign_unpack(bits, 2, back, LT_F32, 10, bits, NULL) == LT_OK);
  for (i = 0; i < 10; ++i) CHECK(back[i] == (values[i] >= 0 ? 0.f : -1.f));

  ballots[0] = bits, ballots[1] = other, ballots[2] = NULL;
  how.weights = weights;
  CHECK(lt_sign_majority(ballots, 3, 10, vote, 2, NULL, &how) == LT_OK && memcmp(vote, bits, 2) == 0);
  weights[0] = 1;
  how.ties = LT_TIES_PLUS;
  CHECK(lt_sign_majority(ballots, 3, 10, vote, 2, NULL, &how) == LT_OK && memcmp(vote, other, 2) == 0);
  how.ties = LT_TIES_ZERO;
  CHECK(lt_sign_majority(ballots, 3, 10, vote, 2, zeros, &how) == LT_OK && memcmp(vote, bits, 2) == 0);
  CHECK(zeros[0] == 0xa2 && zeros[1] == 0x01);
  how.ties = LT_TIES_PREVIOUS;
  how.previous = none;
  CHECK(lt_sign_majority(ballots, 3, 10, vote, 2, NULL, &how) == LT_OK && memcmp(vote, bits, 2) == 0);
  ballots[1] = bits, ballots[2] = none;
  CHECK(lt_sign_majority(ballots, 3, 10, vote, 2, NULL, NULL) == LT_OK && memcmp(vote, bits, 2) == 0);

  options.queue = bits;
  CHECK(lt_sign_pack(values, LT_F32, 10, bits, 2, &options) == LT_INVALID_ARGUMENT);
  CHECK(strstr(lt_last_error(), "got a queue without a device") != NULL);
  CHECK(lt_sign_pack(values, LT_F32, 10, bits, 10, NULL) == LT_INVALID_ARGUMENT);
  CHECK(strstr(lt_last_error(), "got 10 bytes of bits for 10 signs, wanted 2") != NULL);
  return 0;
}
