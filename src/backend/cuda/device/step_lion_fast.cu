// Steps of lion in approximate arithmetic.
#define LT_CUDA_FAST
#define LT_CUDA_NAMESPACE cuda_device_fast
#define LT_CUDA_RULE Lion
#define LT_CUDA_RULE_NAME lion
#include "backend/cuda/device/step_rule.inc"
