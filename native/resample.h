#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "jpeg.h"

namespace tarpeg {

enum class Filter { kNearest, kBilinear, kAntialias };

// How one axis of `in` samples becomes one of `out`: output i is the weighted sum of `taps` samples from
// start[i] on. Weights are integers that sum to exactly 1 << precision.
struct Axis {
  int in = 0, out = 0, taps = 0, precision = 0;
  std::vector<int> start;
  std::vector<int16_t> weights;  // [out][taps]

  // `mirrored`: computed for the mirrored axis, then mirrored back, so that resampling a stored image and
  // then turning it upright equals turning it upright first.
  void prepare(int in_size, int out_size, Filter filter, bool mirrored, int max_precision);
  bool is_identity() const noexcept;
};

// Separable resampling of RGB bytes, rows first, with 7 fractional bits kept between the passes.
// Keeps its memory from image to image; one per thread.
class Resampler {
 public:
  // Reads `box_height` rows from `rows` and writes out_height x out_width pixels to `place`. All sizes are in
  // stored order. The result differs by at most one level from torchvision v2's on uint8.
  Status run(RowSource& rows, int box_height, int box_width, int out_height, int out_width, Filter filter,
             Orientation orientation, const Placement& place);

 private:
  void prepare_columns();

  Axis vertical_, horizontal_;
  std::vector<uint8_t> ring_;         // the last rows read, RGBX
  std::vector<int16_t> blend_;        // one row after the vertical pass, RGBX, 7 fractional bits
  std::vector<uint8_t> pixels_;       // one row of the result, RGB
  std::vector<const uint8_t*> taps_;  // rows under the current output row
  std::vector<int32_t> pairs_;        // vertical weights, two rows in one number
  std::vector<int16_t> columns_;      // horizontal weights in the order of the vector registers
  int blocks_ = 0;                    // groups of four horizontal taps
};

}  // namespace tarpeg
