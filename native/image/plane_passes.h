#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/pages.h"
#include "image/axis.h"

// The passes of resampling Y, Cb and Cr separately: rows, then columns, then colour at the size of the
// result. Note [planes] Chroma takes the weights that libjpeg's upsampling and the filter have together. So
// nothing is upsampled, and colour is converted once per pixel of the result. All in lanes of 16 bits, of
// samples minus 128: after the rows with 8 fractional bits, after the columns with 7. The weights of rows
// have 8 bits and no sign, so only filters without negative weights are possible. Besides rounding, the
// result differs from torchvision v2's where YCbCr is outside of RGB: it clamps colours before resampling,
// this code afterwards.
namespace tarpeg {

constexpr int kRowPrecision = 8, kColumnPrecision = 14;

// One row of the first pass: out[x] is the sum of weight * (sample - 128).
struct PlaneRows {
  const uint8_t* const* rows;  // [2 * pairs]
  const uint8_t* weights;      // [2 * pairs], of sum 256
  int pairs;
  size_t length;  // vector code reads and writes up to the next multiple of 32
};
void blend_plane_rows(const PlaneRows& rows, int16_t* out) noexcept;

// The second pass: the positions and weights of an axis in the order of the vector registers. Rows of gray
// images have it, too.
class PlaneColumns {
 public:
  // Sample `first` of the axis is the first of a row; `reversed`: from right to left.
  // The results have `dropped` fractional bits less than a row.
  void prepare(const Axis& axis, int first, bool reversed, int dropped);
  // Fills out[axis.out], and up to the next multiple of 16. Reads, but does not use, up to axis.taps +
  // kBeyond numbers past the row.
  void blend(const int16_t* row, int16_t* out) const noexcept;
  size_t bytes() const noexcept { return held_bytes(start_, weights_, picks_); }
  static constexpr int kBeyond = 64;

 private:
  friend struct PlaneColumnsCode;
  int width_ = 0, shift_ = 0;
  // If every four outputs have their first two taps among eight samples, which one vector holds, `picks_` are
  // bytes of it [eight outputs][output][byte], weights_ [eight outputs][pair of taps][output][tap], and
  // start_ has a number for each four outputs. With AVX-512 the same for sixteen outputs and `reach_`
  // samples, 32 or 64, and picks_ are pairs of their numbers. Otherwise pairs_ is 0, outputs have blocks of
  // eight taps (portable code: four), weights_ [two outputs][block][output][tap], and start_ has a number for
  // each.
  int pairs_ = 0, blocks_ = 0, reach_ = 0;
  std::vector<int> start_;
  std::vector<int16_t> weights_;
  std::vector<uint8_t> picks_;
};

// Three lines of the second pass to RGB (BT.601, full range).
void planes_to_rgb(const int16_t* luma, const int16_t* cb, const int16_t* cr, int width,
                   uint8_t* rgb) noexcept;

}  // namespace tarpeg
