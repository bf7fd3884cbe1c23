#pragma once

#include <cstddef>
#include <cstdint>

namespace tarpeg {

// One block to be transformed: 64 coefficients and quantisers in natural order, and where its 8 rows of 8 go.
struct DctBlock {
  const int16_t* coefficients;
  const uint16_t* quantisers;
  uint8_t* out;
};

// The inverse DCT of two blocks, equal bit for bit to libjpeg's accurate integer one (jidctint.c; Loeffler,
// Ligtenberg and Moschytz, 1989), as its vector code computes it: sums of 16 bits wrap, results saturate.
void inverse_dct(const DctBlock& first, const DctBlock& second, ptrdiff_t stride) noexcept;

// The same, followed by means of 2x2 samples: 4 rows of 4 bytes each, as reduce_block() makes them.
void halved_dct(const DctBlock& first, const DctBlock& second, ptrdiff_t stride) noexcept;

// Means of down_by x across_by samples (1, 2, 4 or 8 each) of a dense 8x8 block, rounded to nearest.
void reduce_block(const uint8_t* block, int down_by, int across_by, uint8_t* out, ptrdiff_t stride) noexcept;

}  // namespace tarpeg
