// The control with our flags: contraction off.
#define LT_CONTROL_NAME adamw_plain
#include "equivalence/contraction_control.inc"
