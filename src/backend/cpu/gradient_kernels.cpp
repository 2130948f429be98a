// The kernels of gradient sums, compiled once per instruction set; see gradient_kernels.inc.
#include "backend/cpu/gradient_kernels.inc"
