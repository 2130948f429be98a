// Steps of sgd_plain in approximate arithmetic.
#define LT_CUDA_FAST
#define LT_CUDA_NAMESPACE cuda_device_fast
#define LT_CUDA_RULE SgdPlain
#define LT_CUDA_RULE_NAME sgd_plain
#include "backend/cuda/device/step_rule.inc"
