// The rule-independent kernels, compiled once per instruction set; see aux_kernels.inc.
#include "backend/cpu/aux_kernels.inc"
