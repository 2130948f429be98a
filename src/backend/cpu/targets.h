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
// In a build for one processor, Highway 1.0 expects AVX-VNNI beside VBMI, but Ice Lake and Zen 4 lack it, and no kernel
// uses it.
#if defined(HWY_COMPILE_ONLY_STATIC) && defined(__x86_64__) && defined(__AVX512VBMI__) && defined(__AVX512VBMI2__) && \
    defined(__AVX512BITALG__) && defined(__AVX512VPOPCNTDQ__) && defined(__AVX512VNNI__) && defined(__VAES__) &&      \
    defined(__VPCLMULQDQ__) && defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512DQ__) &&              \
    defined(__AVX512VL__) && defined(__AVX2__) && defined(__FMA__) && defined(__BMI2__) && defined(__F16C__) &&       \
    defined(__AES__) && defined(__PCLMUL__) && defined(__SSE4_2__)
#define HWY_BASELINE_TARGETS HWY_AVX3_DL
#endif
#endif
