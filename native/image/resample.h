#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/pages.h"
#include "base/rows.h"
#include "image/axis.h"
#include "image/columns_first.h"
#include "image/orientation.h"
#include "image/plane_passes.h"

namespace tarpeg {

// The resizing of a box: all sizes in stored order. The box has height x width samples before a reduction,
// whose first mean begins `top` and `left` samples before it.
struct Resize {
  int height, width, out_height, out_width;
  Filter filter;
  Orientation orientation;
  int reduction, top, left;
  bool is_gray = false;  // rows have one byte per pixel, not RGBX
};

// Separable resampling of RGB or gray bytes with 7 fractional bits kept between the passes. Keeps its memory
// from image to image; one per thread.
//
// Note [order]
// The order of the passes hardly matters if no weight is negative: rows first. Filters that overshoot
// (is_rounded_between) are clamped to 0..255 between the passes, and at hard edges the order does matter: as
// in torchvision and Pillow, usually the columns of the upright image first, which are the stored rows of an
// image on its side. They round to whole levels there, which moves the result by half a level times the sum
// of the absolute weights, at most 0.8: with 7 fractional bits it stays within one level of theirs.
class Resampler {
 public:
  // Reads as many rows as it needs and writes out_height x out_width pixels to `place`. Without a reduction
  // the result differs by at most one level from torchvision v2's on uint8.
  Status run(RowSource& rows, const Resize& resize, const Placement& place);
  // The same from Y, Cb and Cr (Note [planes]), for filters without negative weights: `box`, of the samples
  // or the means of all components. One level less exact, and more where colours are beyond RGB.
  void run(const Samples* planes, const Box& box, const Resize& resize, const Placement& place);
  size_t bytes() const noexcept {
    size_t sum = vertical_.bytes() + horizontal_.bytes() + groups_.bytes();
    for (const PlanePass& pass : passes_)
      sum += pass.down.bytes() + pass.across.bytes() + pass.columns.bytes();
    return sum + held_bytes(ring_, blend_, pixels_, taps_, pairs_, columns_, taps_between_, starts_, gray_,
                            gray_between_, lines_, row_weights_);
  }

 private:
  void prepare_columns(bool reversed);
  Status run_columns_first(RowSource& rows, bool is_gray, const Placement& place);

  // How components of one geometry are resampled.
  struct PlanePass {
    Axis down, across;  // of subsampled ones
    const Axis* rows;
    PlaneColumns columns;
    int top, left, width;  // of the samples under the box; `top` is where the axis `rows` begins
  };
  void prepare_pass(const Samples& plane, const Box& box, bool reversed, PlanePass* pass);

  Axis vertical_, horizontal_;
  std::vector<uint8_t> ring_;         // the last rows read, RGBX or gray
  std::vector<int16_t> blend_;        // one row after the vertical pass, RGBX or gray, 7 fractional bits
  std::vector<uint8_t> pixels_;       // one row of the result, RGB or gray
  std::vector<const uint8_t*> taps_;  // rows under the current output row
  std::vector<int32_t> pairs_;        // vertical weights, two rows in one number
  std::vector<int16_t> columns_;      // horizontal weights in the order of the vector registers
  int blocks_ = 0;                    // groups of four horizontal taps
  // Of the columns first: rows between the passes are in blend_, weights of both passes in pairs_.
  std::vector<const int16_t*> taps_between_;
  std::vector<int> starts_;
  ColumnGroups groups_;
  std::vector<uint8_t> gray_;
  std::vector<int16_t> gray_between_;
  // Of planes: rows between the passes are in blend_. The first has the columns of gray images, too.
  PlanePass passes_[3];
  std::vector<int16_t> lines_;  // of each component, or of gray, after both passes
  std::vector<uint8_t> row_weights_;
};

}  // namespace tarpeg
