#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/pages.h"
#include "base/rows.h"
#include "image/axis.h"
#include "image/column_pass.h"
#include "image/orientation.h"
#include "image/row_passes.h"

namespace tarpeg {

// The resizing of a box: all sizes in stored order. The box has height x width samples before a reduction,
// whose first mean begins `top` and `left` samples before it.
struct Resize {
  int height, width, out_height, out_width;
  Filter filter;
  Orientation orientation;
  int reduction, top, left;
  bool is_gray = false;  // otherwise rows are RGB
};

// Separable resampling of gray or RGB bytes, one channel at a time, with 7 fractional bits kept between the
// passes. Keeps its memory from image to image; one per thread.
//
// Note [order]
// The order of the passes hardly matters if no weight is negative: rows first. Filters that overshoot
// (is_rounded_between) are clamped to 0..255 between the passes, and at hard edges the order does matter: as
// in torchvision and Pillow, usually the columns of the upright image first, which are the stored rows of an
// image on its side. They round to whole levels there, which moves the result by half a level times the sum
// of the absolute weights, at most 0.8: with 7 fractional bits it stays within one level of theirs.
//
// Note [planes]
// Fast resampling of YCbCr: Y, Cb and Cr separately, and colour at the size of the result. Chroma takes the
// weights that libjpeg's upsampling and the filter have together. So nothing is upsampled, and colour is
// converted once per pixel of the result. All in lanes of 16 bits, of samples minus 128: after the rows with
// 8 fractional bits, after the columns with 7. The weights of rows have 8 bits and no sign, so only filters
// without negative weights are possible. Besides rounding, the result differs from torchvision v2's where
// YCbCr is outside of RGB: it clamps colours before resampling, this code afterwards.
class Resampler {
 public:
  // Reads as many rows as it needs and writes out_height x out_width pixels to `place`. Without a reduction
  // the result differs by at most one level from torchvision v2's on uint8.
  Status run(RowSource& rows, const Resize& resize, const Placement& place);
  // The same from Y, Cb and Cr (Note [planes]), for filters without negative weights: `box`, of the samples
  // or the means of all components. One level less exact, and more where colours are beyond RGB.
  void run(const Samples* planes, const Box& box, const Resize& resize, const Placement& place);
  size_t bytes() const noexcept {
    size_t sum = vertical_.bytes() + horizontal_.bytes() + columns_.bytes();
    for (const PlanePass& pass : passes_)
      sum += pass.down.bytes() + pass.across.bytes() + pass.columns.bytes();
    return sum + held_bytes(ring_, between_, pixel_row_, lines_, pixels_, taps_, taps_between_, pairs_,
                            row_weights_);
  }

 private:
  Status run_rows_first(RowSource& rows, const Resize& resize, const Placement& place);
  Status run_columns_first(RowSource& rows, const Resize& resize, const Placement& place);
  void put_levels(int y, const Resize& resize, const Placement& place);

  // How components of one geometry are resampled.
  struct PlanePass {
    Axis down, across;  // of subsampled ones
    const Axis* rows;
    ColumnPass columns;
    int top, left, width;  // of the samples under the box; `top` is where the axis `rows` begins
  };
  void prepare_pass(const Samples& plane, const Box& box, bool reversed, PlanePass* pass);

  Axis vertical_, horizontal_;
  ColumnPass columns_;
  PlanePass passes_[3];
  std::vector<uint8_t> ring_;                 // the last rows read
  std::vector<int16_t> between_;              // rows between the passes, channel by channel
  std::vector<uint8_t> pixel_row_;            // one row before it is split into channels
  std::vector<int16_t> lines_;                // of each channel, after both passes
  std::vector<uint8_t> pixels_;               // one row of the result that goes to places apart
  std::vector<const uint8_t*> taps_;          // rows under the current row of the result
  std::vector<const int16_t*> taps_between_;  // the same between the passes
  std::vector<WeightPair> pairs_;             // their weights
  std::vector<uint8_t> row_weights_;          // the same of planes
};

}  // namespace tarpeg
