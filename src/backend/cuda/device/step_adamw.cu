// Steps of adamw.
#define LT_CUDA_RULE AdamW
#define LT_CUDA_RULE_NAME adamw
#include "backend/cuda/device/step_rule.inc"
