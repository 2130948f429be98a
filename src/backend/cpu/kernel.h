// Plain pointers and counts that the dispatcher passes to the kernels of one instruction set.
#pragma once

#include <cstdint>

#include "backend/limits.h"
#include "backend/norms.h"

namespace lowtide {
struct TermSums;  // backend/term_sums.h
}
namespace lowtide::cpu {

// One contiguous run of elements of one row: whole blocks of 256 from its start, of which the last may be short.
struct StepRun {
  void* param;       // [n]
  const void* grad;  // [n]
  int64_t n;
  void* codes[kMaxStates];    // [n] each
  float* scales[kMaxStates];  // [ceil(n / 256)] each, if the codec has scales
  const void* args;           // the rule's Args
  float grad_scale;           // multiplies every gradient
  uint32_t stochastic;        // bit k: state k is rounded stochastically with key[k]
  uint32_t key[kMaxStates][2];
  uint32_t index;  // low 32 bits of the first element's index (ShardOrigin); later ones never carry
};

using StepKernel = void (*)(const StepRun&);

// A run like a step's, of floats; the norms of its blocks go to `out`, or its terms, of at most kMostSummed elements,
// to `sums`.
inline constexpr int64_t kMostSummed = 4096;
struct NormRun {
  const float *param, *grad;  // [n]
  int64_t n;
  const void* codes[kMaxStates];
  const float* scales[kMaxStates];
  const void* args;
  float grad_scale;
  BlockNorms* out;  // [ceil(n / 256)]
  TermSums* sums;
};
using NormKernel = void (*)(const NormRun&);

// Returns true if the magnitudes of all n gradients, as float bits, are below limit_bits. The limit is at most
// infinity's bits, so infinities and NaNs never pass.
using FiniteKernel = bool (*)(const void* grad, int64_t n, uint32_t limit_bits);

// Converts n elements of `in` to `out`; one side is float.
using ConvertKernel = void (*)(const void* in, void* out, int64_t n);

// Joins weights and their residuals into floats, or splits floats into weights and residuals.
struct MasterRun {
  void* weights;
  void* residual;
  float* floats;
  int64_t n;
  uint32_t key[2];
  uint32_t index;  // as in StepRun
};
using MasterKernel = void (*)(const MasterRun&);

// Decodes n values to float, in blocks as in StepRun, or encodes them.
struct CodecRun {
  float* values;
  void* codes;
  float* scales;
  int64_t n;
};
using CodecKernel = void (*)(const CodecRun&);

}  // namespace lowtide::cpu
