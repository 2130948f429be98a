// The control that must fail: the build adds -ffp-contract=fast -mfma to this file.
#define LT_CONTROL_NAME adamw_contracted
#include "equivalence/contraction_control.inc"
