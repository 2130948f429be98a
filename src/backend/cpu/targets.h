// The instruction sets for which kernels are compiled: AVX-512 with VBMI (AVX3_DL), AVX-512, AVX2, NEON on ARM64, and
// scalar code. Include this before Highway. SSSE3 and SSE4 would gain little over scalar code and cost compile time;
// SVE's vectors have no compile-time size, and the kernels keep vectors in structs.
#pragma once

#define HWY_WANT_AVX3_DL 1
#define HWY_BROKEN_EMU128 1  // the fallback takes one float at a time: the reference for vector code
#if defined(__aarch64__)
#define HWY_DISABLED_TARGETS (HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128)
#else
#define HWY_DISABLED_TARGETS (HWY_SSSE3 | HWY_SSE4)
#endif
