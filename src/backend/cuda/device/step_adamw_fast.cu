// Steps of adamw in approximate arithmetic.
#define LT_CUDA_FAST
#define LT_CUDA_NAMESPACE cuda_device_fast
#define LT_CUDA_RULE AdamW
#define LT_CUDA_RULE_NAME adamw
#include "backend/cuda/device/step_rule.inc"
