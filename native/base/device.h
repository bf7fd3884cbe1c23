#pragma once

// Note [one arithmetic]: the arithmetic of a pixel is written once, in batch/warp.h, batch/final_pass.h and
// batch/programs.h, for the CPU's portable code, for its vector code (these functions are inlined into loops
// that the compiler turns into AVX2 or AVX-512) and for CUDA. All three give the same bits: nothing is
// contracted to a fused multiply-add (-ffp-contract=off, -fmad=false), those of torch are written as fmaf,
// sums over an image are of integers, each comparison defines the result for NaN, and a NaN of 16 bits is
// always the same one. Which NaN a result of float32 is, the processor decides.
#if defined(__CUDACC__)
#define TARPEG_HD __host__ __device__ __forceinline__
#else
#define TARPEG_HD inline __attribute__((always_inline))
#endif
