#pragma once

#include <cstddef>
#include <cstdint>

namespace tarpeg {

// One block to be transformed: 64 coefficients and quantisers in natural order, and the destination of 8 x 8
// samples, or 4 x 4, in rows `stride` bytes apart.
struct DctBlock {
  const int16_t* coefficients;
  const uint16_t* quantisers;
  uint8_t* out;
  ptrdiff_t stride;
};

// The inverse DCT of some blocks, equal bit for bit to libjpeg's accurate integer one (jidctint.c; Loeffler,
// Ligtenberg and Moschytz, 1989), as its vector code computes it: sums of 16 bits wrap, results saturate.
void inverse_dct(const DctBlock* blocks, int count) noexcept;

// Four rows of four means of 2x2 samples, computed directly from the coefficients: equal bit for bit to
// libjpeg's at half size (jidctred.c). Except for rounding they are the means of the samples of
// inverse_dct().
void halved_dct(const DctBlock* blocks, int count) noexcept;

}  // namespace tarpeg
