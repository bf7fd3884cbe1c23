#pragma once

#include <cstddef>
#include <cstdint>

// The vertical pass of resampling: weighted sums of whole rows. The same integer sums with and without vector
// code, which reads and writes up to the next multiple of 32 numbers.
namespace tarpeg {

// Weights of two rows: that of the even row in the low half, that of the odd row in the high half.
using WeightPair = int32_t;

// One row of the result: the sums of weight * number over 2 * pairs rows, shifted, within 16 bits.
template <class T>
struct Rows {
  const T* const* rows;
  const WeightPair* weights;  // [pairs]
  int pairs;
  size_t length;
  int shift;
};
// Bytes, or numbers after the horizontal pass.
void blend_rows(const Rows<uint8_t>& rows, int16_t* out) noexcept;
void blend_rows(const Rows<int16_t>& rows, int16_t* out) noexcept;

// The faster one of planes (Note [planes]): out[x] is the sum of weight * (sample - 128).
struct PlaneRows {
  const uint8_t* const* rows;  // [2 * pairs]
  const uint8_t* weights;      // [2 * pairs], of sum 256
  int pairs;
  size_t length;
};
void blend_plane_rows(const PlaneRows& rows, int16_t* out) noexcept;

}  // namespace tarpeg
