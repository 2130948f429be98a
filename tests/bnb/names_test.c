/* The functions as bitsandbytes' Python calls them through ctypes: c_size_t, c_void_p, c_int32, c_float, c_uint8 and
 * c_int64, which is a long where we run. */
#include <stdint.h>

#include "lowtide/bnb.h"

_Static_assert(sizeof(long) == sizeof(int64_t), "the count of a fill is a c_int64");
_Static_assert(sizeof(int) == sizeof(int32_t), "a device is a c_int32");

int lt_bnb_names_test(void);

/* Returns the number of elements that are as they were filled: 3 of float32, 3 of uint8. */
int lt_bnb_names_test(void) {
  void* (*get)(size_t) = cget_managed_ptr;
  void (*prefetch)(void*, size_t, int32_t) = cprefetch;
  void (*fill_fp32)(float*, float*, float, long) = cfill_fp32;
  void (*fill_uint8)(unsigned char*, unsigned char*, uint8_t, long) = cfill_uint8;
  int right = 0;
  void* memory = get(12);
  if (!memory) return -1;
  prefetch(memory, 12, 0);
  fill_fp32((float*)memory, NULL, -1.5f, 3);
  for (int i = 0; i < 3; ++i) right += ((float*)memory)[i] == -1.5f;
  fill_uint8((unsigned char*)memory, NULL, 127, 3);
  for (int i = 0; i < 3; ++i) right += ((unsigned char*)memory)[i] == 127;
  prefetch(memory, 12, -1);
  cfree_managed_ptr(memory);
  return right;
}
