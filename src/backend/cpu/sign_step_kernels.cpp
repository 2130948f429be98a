// The kernels that step by signs, compiled once per instruction set; see sign_step_kernels.inc.
#include "backend/cpu/sign_step_kernels.inc"
