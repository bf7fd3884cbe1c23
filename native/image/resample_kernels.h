#pragma once

#include <cstddef>
#include <cstdint>

namespace tarpeg::kernels {

// One output row of the vertical pass: bytes [0, length) of 2 * pairs rows, weighted.
struct Rows {
  const uint8_t* const* rows;
  const int32_t* weights;  // [pairs]: the even row's weight in the low half, the odd row's in the high half
  int pairs;
  size_t length;  // bytes, a multiple of 4; rows and out have room for the next multiple of 32
  int shift;
};

// One output row of the horizontal pass: `width` pixels, each of blocks * 4 taps.
struct Columns {
  const int* start;  // [width], pixels
  const int16_t*
      weights;  // [width][blocks][tap pair][channel][tap]: as a multiply-add of 16 lanes takes them
  int blocks, width, shift;
};

void blend_rows(const Rows& rows, int16_t* out) noexcept;
void blend_columns(const Columns& columns, const int16_t* row, uint8_t* out) noexcept;

// The same sums in the same integers; only where has_avx2().
void blend_rows_avx2(const Rows& rows, int16_t* out) noexcept;
void blend_columns_avx2(const Columns& columns, const int16_t* row, uint8_t* out) noexcept;

}  // namespace tarpeg::kernels
