#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/pages.h"

// The two passes of the filters that overshoot (is_rounded_between), in torchvision's and Pillow's order:
// columns first, then rows. The same integer sums with and without vector code.
namespace tarpeg {

// Between the passes a level is 128 units: 255 * 128 still fits 16 bits with a sign.
constexpr int kBlendBits = 7;
constexpr int kMostBetween = 255 << kBlendBits;
// Rows of the first pass at a time: they share the loads of weights.
constexpr int kRowsAtOnce = 4;
// 32-bit weights: that of the even tap in the low half, that of the odd tap in the high half.
using WeightPair = int32_t;

// The first pass: `width` pixels, each of 2 * pairs taps; RGBX bytes become RGB of 7 fractional bits, clamped
// to 0..255. Vector code reads up to kReadBeyond bytes past the last tap, and writes as many values past the
// last pixel as kWrittenBeyond.
constexpr int kReadBeyond = 128, kWrittenBeyond = 16;
class ColumnGroups;
struct ColumnPass {
  const int* start;           // [width], pixels
  const WeightPair* weights;  // [width][pairs]
  int pairs, width, shift;
  const ColumnGroups* groups;  // of the same pixels
};

// Starts and weights in the order of AVX-512's registers: five pixels at a time, picked from 32.
class ColumnGroups {
 public:
  // Does nothing without AVX-512, or if five pixels need more than 32.
  void prepare(const ColumnPass& pass);
  bool is_ready() const noexcept { return !base_.empty(); }
  size_t bytes() const noexcept { return held_bytes(base_, picks_, weights_); }

 private:
  friend struct ColumnGroupsCode;
  std::vector<int> base_;            // [five pixels]: the first of the 32
  std::vector<uint8_t> picks_;       // [five pixels][pixel, channel][first two taps][byte of the 32, -]
  std::vector<WeightPair> weights_;  // [five pixels][pair][pixel, channel]
};
void blend_columns_first(const ColumnPass& pass, const uint8_t* const* rows, int16_t* const* out) noexcept;

// The second pass: `length` values of 2 * pairs rows become one row of bytes. Vector code reads and writes up
// to the next multiple of 32.
struct RowPass {
  const int16_t* const* rows;
  const WeightPair* weights;  // [pairs]
  int pairs;
  size_t length;
  int shift;
};
void blend_rows_second(const RowPass& pass, uint8_t* out) noexcept;

}  // namespace tarpeg
