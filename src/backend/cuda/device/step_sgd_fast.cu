// Steps of sgd in approximate arithmetic.
#define LT_CUDA_FAST
#define LT_CUDA_NAMESPACE cuda_device_fast
#define LT_CUDA_RULE Sgd
#define LT_CUDA_RULE_NAME sgd
#include "backend/cuda/device/step_rule.inc"
