// The sign kernels, compiled once per instruction set; see sign_kernels.inc.
#include "backend/cpu/sign_kernels.inc"
