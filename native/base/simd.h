#pragma once

// Vector code is written in intrinsics of AVX2, FMA and F16C: compiled by attributes, chosen at run time.
#if defined(__x86_64__)
#define TARPEG_AVX2 __attribute__((target("avx2")))
#define TARPEG_AVX2_F16C __attribute__((target("avx2,f16c")))
#define TARPEG_AVX2_FMA __attribute__((target("avx2,fma")))
#include <immintrin.h>
#endif

namespace tarpeg {

// Whether vector code runs: AVX2 with FMA, unless TARPEG_PORTABLE=1 is in the environment. Both give the same
// bytes.
bool has_avx2() noexcept;

}  // namespace tarpeg
