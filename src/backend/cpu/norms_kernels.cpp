// The norm kernels, compiled once per instruction set; see norms_kernels.inc.
#include "backend/cpu/norms_kernels.inc"
