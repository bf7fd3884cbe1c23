#pragma once

#include "base/simd.h"
#include "jpeg/idct.h"
#include "jpeg/idct_constants.h"

// The vector code of inverse_dct() and halved_dct().
namespace tarpeg {

// Two or four blocks. False, and nothing done, if only the portable code is correct: Note [flat columns].
#if defined(TARPEG_AVX2)
TARPEG_AVX2 bool inverse_dct_avx2(const DctBlock& first, const DctBlock& second) noexcept;
TARPEG_AVX2 bool halved_dct_avx2(const DctBlock& first, const DctBlock& second) noexcept;
#endif
#if defined(TARPEG_AVX512)
TARPEG_AVX512 bool inverse_dct_avx512(const DctBlock& first, const DctBlock& second, const DctBlock& third,
                                      const DctBlock& fourth) noexcept;
TARPEG_AVX512 bool halved_dct_avx512(const DctBlock& first, const DctBlock& second, const DctBlock& third,
                                     const DctBlock& fourth) noexcept;
#endif

}  // namespace tarpeg
