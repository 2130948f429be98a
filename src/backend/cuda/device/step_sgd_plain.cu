// Steps of sgd_plain.
#define LT_CUDA_RULE SgdPlain
#define LT_CUDA_RULE_NAME sgd_plain
#include "backend/cuda/device/step_rule.inc"
