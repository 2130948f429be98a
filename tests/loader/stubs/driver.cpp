// Stands for a libcuda of any version; of a broken one where that is 0.
#include "lowtide/export.h"

extern "C" LT_API int cuDriverGetVersion(int* version);
int cuDriverGetVersion(int* version) {
  *version = LT_STUB_NUMBER;
  return LT_STUB_NUMBER ? 0 : 999;
}
