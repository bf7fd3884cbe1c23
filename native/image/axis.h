#pragma once

#include <cstdint>
#include <vector>

namespace tarpeg {

// kAntialias is the antialiased kBilinear, kSharpBicubic the bicubic without antialiasing.
enum class Filter { kNearest, kNearestExact, kBilinear, kAntialias, kBicubic, kLanczos, kBox, kSharpBicubic };

// The filters whose results are rounded and clamped like torchvision's and Pillow's between the two passes:
// their negative weights overshoot at edges.
constexpr bool is_rounded_between(Filter filter) noexcept { return filter > Filter::kAntialias; }

// How one axis of `in` samples becomes one of `out`: output i is the weighted sum of `taps` samples from
// start[i] on. Weights are integers that sum to exactly 1 << precision.
struct Axis {
  int in = 0, out = 0, taps = 0, precision = 0;
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
};

}  // namespace tarpeg
