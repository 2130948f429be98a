// Steps of lion.
#define LT_CUDA_RULE Lion
#define LT_CUDA_RULE_NAME lion
#include "backend/cuda/device/step_rule.inc"
