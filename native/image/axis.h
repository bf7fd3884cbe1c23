#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/device.h"
#include "base/pages.h"
#include "base/rows.h"

namespace tarpeg {

// kAntialias is the antialiased kBilinear, kSharpBicubic the bicubic without antialiasing.
enum class Filter { kNearest, kNearestExact, kBilinear, kAntialias, kBicubic, kLanczos, kBox, kSharpBicubic };

// The filters whose results are rounded and clamped like torchvision's and Pillow's between the two passes:
// their negative weights overshoot at edges.
TARPEG_HD constexpr bool is_rounded_between(Filter filter) { return filter > Filter::kAntialias; }

// How one axis of `in` samples becomes one of `out`: output i is the weighted sum of `taps` samples from
// start[i] on. Weights are integers that sum to exactly 1 << precision. Keeps its memory from image to image.
struct Axis {
  int in = 0, out = 0, taps = 0, precision = 0;
  int end = 0;  // of the samples whose weights are not zero
  std::vector<int> start;
  std::vector<int16_t> weights;  // [out][taps]

  // `mirrored`: computed for the mirrored axis, then mirrored back, so that resampling a stored image and
  // then turning it upright equals turning it upright first.
  // Note [reduction]
  // With `reduction` n, the samples are means of n neighbours each, the first of which begins `offset`
  // samples before the axis. A mean takes the sum of its samples' weights, so the result differs from that on
  // the samples only by how much weights, which change slowly over 2 n samples or more, differ within a mean.
  void prepare(int in_size, int out_size, Filter filter, bool mirrored, int reduction, int offset,
               int max_precision);
  // The same outputs from the samples of a subsampled component, `count` in the whole image: each sample
  // takes the weights of the pixels that upsampling would make of it, whose first is pixel `offset` of the
  // image. start[i] counts from the first sample of the image.
  void prepare_component(const Axis& pixels, int offset, const Upsampling& upsampling, int count,
                         int max_precision);
  size_t bytes() const noexcept { return held_bytes(start, weights, counts_, shares_); }

 private:
  static constexpr int kGap = 4;  // zeros, for prepare_component()
  double* make_room(int most);
  void round_weights(int max_precision);

  std::vector<int> counts_;     // taps of each output
  std::vector<double> shares_;  // their weights, one output after the other, each between kGap numbers
};

}  // namespace tarpeg
