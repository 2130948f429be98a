// Steps of adam in approximate arithmetic.
#define LT_CUDA_FAST
#define LT_CUDA_NAMESPACE cuda_device_fast
#define LT_CUDA_RULE Adam
#define LT_CUDA_RULE_NAME adam
#include "backend/cuda/device/step_rule.inc"
