// The kernel tables of one instruction set.
#pragma once

#include <cstdint>

#include "backend/cpu/kernel.h"

namespace lowtide::cpu {

inline constexpr int kRules = 0
#define LT_RULE(number, name, Rule) +1
#include "portable/rules.def"
#undef LT_RULE
    ;
inline constexpr int kCodecs = 0
#define LT_CODEC(number, name, Codec) +1
#include "portable/codecs.def"
#undef LT_CODEC
    ;
inline constexpr int kMasters = 1  // including none
#define LT_MASTER(number, name, bits) +1
#include "portable/masters.def"
#undef LT_MASTER
    ;
inline constexpr int kDTypes = 3;  // float32, bfloat16, float16, numbered as in DType

// The kernels for (parameter, gradient) have number parameter * kDTypes + gradient, the order of pairs.def.
inline constexpr int kPairs = kDTypes * kDTypes;

struct AuxKernels {
  ConvertKernel to_float[kDTypes], from_float[kDTypes];            // for 16-bit types
  MasterKernel join[kDTypes][kMasters], split[kDTypes][kMasters];  // for 16-bit weights; no entries for float32
  FiniteKernel finite[kDTypes];
  CodecKernel decode[kCodecs][2], encode[kCodecs][2];  // [codec][is signed]
};

// target: one Highway target bit.
AuxKernels pick_aux(int64_t target);
// rule: an LT_NORM_RULE.
NormKernel pick_norms(int rule, int codec, int64_t target);
// Return nullptr for a pair without its own kernel.
#define LT_RULE(number, name, Rule) StepKernel pick_step_##name(int codec, int pair, int64_t target);
#include "portable/rules.def"
#undef LT_RULE

// The kernels in the library; nullptr for rules that LOWTIDE_RULES leaves out.
struct StepKernels {
  StepKernel of[kRules][kCodecs][kPairs];
};
StepKernels pick_steps(int64_t target);

}  // namespace lowtide::cpu
