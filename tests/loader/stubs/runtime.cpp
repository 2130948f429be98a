// Stands for a libsycl of any major.
#include "lowtide/export.h"

extern "C" LT_API int lt_stub_runtime();
int lt_stub_runtime() { return 1; }
