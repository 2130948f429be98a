// Steps of adam.
#define LT_CUDA_RULE Adam
#define LT_CUDA_RULE_NAME adam
#include "backend/cuda/device/step_rule.inc"
