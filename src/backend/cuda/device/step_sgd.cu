// Steps of sgd.
#define LT_CUDA_RULE Sgd
#define LT_CUDA_RULE_NAME sgd
#include "backend/cuda/device/step_rule.inc"
