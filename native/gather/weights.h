#pragma once

#include <cmath>
#include <cstdint>

#include "base/device.h"
#include "image/axis.h"
#include "image/taps.h"

// The weights of resampling, as image/axis.cpp computes them, of each output alone.
namespace tarpeg::gather {

constexpr int kPlaneRowBits = 8, kPlaneColumnBits = 14;

// Axis::prepare(), and Axis::prepare_component() where `times` is not 1.
struct AxisPlan {
  int in, out;
  Filter filter;
  bool mirrored;
  int reduction, offset, precision;
  // A component of `count` samples in the whole image, each of which is `times` pixels; the box begins with
  // pixel `begin`.
  int times, begin, count;
  bool mixes;
  int stride;                               // of weights: at least as many as an output has
  uint64_t start, counts, weights, shares;  // in the memory of the image
};

// More numbers than any output takes in the course of its computation.
TARPEG_HD int stride_of(const AxisPlan& axis) {
  const Scale how(axis.in, axis.out, axis.filter);
  return most(most_taps(axis.in, axis.out, axis.filter), static_cast<int>(ceil(2 * how.support))) + 4;
}

// The samples of output i, whichever way the axis runs.
TARPEG_HD Taps taps_of(const AxisPlan& axis, int i, const double* lanczos, double* weights) {
  const Scale how(axis.in, axis.out, axis.filter);
  if (axis.filter != Filter::kAntialias) {
    return tap_weights(i, axis.in, axis.out, axis.filter, how, lanczos, weights);
  }
  const double center = how.scale * (i + 0.5);
  const Taps taps = taps_under(center, how.support, axis.in);
  const int width = static_cast<int>(ceil(2 * how.support));
  triangle(taps, width <= 4 && taps.count <= 4 ? 4 : most(taps.count, width), center, how.inverse, weights);
  return {taps.first, most(taps.count, least(width, axis.in - taps.first))};
}

// The pixels of an output, in the order of the stored axis.
TARPEG_HD Taps pixel_shares(const AxisPlan& axis, int i, const double* lanczos, double* row) {
  Taps taps = taps_of(axis, axis.mirrored ? axis.out - 1 - i : i, lanczos, row);
  if (axis.mirrored) {
    taps.first = axis.in - taps.first - taps.count;
    for (int j = 0; j < taps.count / 2; ++j) {
      const double other = row[j];
      row[j] = row[taps.count - 1 - j];
      row[taps.count - 1 - j] = other;
    }
  } else if (axis.filter != Filter::kAntialias) {
    while (taps.count > 1 && row[taps.count - 1] == 0.0) --taps.count;
  }
  return axis.reduction > 1 ? reduced(taps, axis.reduction, axis.offset, row) : taps;
}

// The same of a component, from those of the pixels: see Axis::prepare_component().
TARPEG_HD Taps component_shares(const AxisPlan& axis, const double* share, const Taps& pixels, double* row) {
  const int taken = pixels.count, begin = axis.begin + pixels.first, end = begin + taken;
  const int last = axis.count - 1, times = axis.times;
  if (!axis.mixes) {
    const int first = begin / times, count = (end - 1) / times - first + 1;
    for (int j = 0; j < count; ++j) row[j] = 0.0;
    for (int j = 0; j < taken; ++j) row[(begin + j) / times - first] += share[j];
    return {first, count};
  }
  const int first = most(0, (begin - 1) / 2);
  const auto pixel = [share, taken](int k) { return k >= 0 && k < taken ? share[k] : 0.0; };
  int k = 2 * first - begin;
  for (int j = 0; j < taken / 2 + 2; ++j, k += 2)
    row[j] = 0.75 * (pixel(k) + pixel(k + 1)) + 0.25 * (pixel(k - 1) + pixel(k + 2));
  const int behind = least(last, end / 2);
  if (begin == 0) row[0] += 0.25 * share[0];
  if (end - 1 == 2 * last + 1) row[behind - first] += 0.25 * share[taken - 1];
  return {first, behind - first + 1};
}

// Everything of an axis before its weights are rounded. `shares`: of output i.
TARPEG_HD Taps output_shares(const AxisPlan& axis, int i, const double* lanczos, double* shares) {
  if (axis.times == 1) return pixel_shares(axis, i, lanczos, shares);
  double* const pixels = shares + axis.stride;
  const Taps taken = pixel_shares(axis, i, lanczos, pixels);
  return component_shares(axis, pixels, taken, shares);
}

// The bits that weights have, of an axis whose largest share is `peak`.
TARPEG_HD int precision_of(const AxisPlan& axis, double peak) {
  int precision = axis.precision;
  if (precision <= 14) peak = 1;
  // Weights of a damaged table may be anything; others are below 2, and have 14 bits.
  while (precision > kPlaneRowBits && peak * (1 << precision) > 32000) --precision;
  return precision;
}

// The finished weights of an axis, in the memory of an image; start[out] is their precision.
struct AxisView {
  int *start, *counts;
  int16_t* weights;
  double* shares;
  int out, stride, shares_stride;

  TARPEG_HD AxisView(const AxisPlan& axis, uint8_t* memory)
      : start(reinterpret_cast<int*>(memory + axis.start)),
        counts(reinterpret_cast<int*>(memory + axis.counts)),
        weights(reinterpret_cast<int16_t*>(memory + axis.weights)),
        shares(reinterpret_cast<double*>(memory + axis.shares)),
        out(axis.out),
        stride(axis.stride),
        shares_stride(axis.stride * (axis.times > 1 ? 2 : 1)) {}
  TARPEG_HD int precision() const { return start[out]; }
  TARPEG_HD const int16_t* weights_of(int i) const { return weights + static_cast<int64_t>(i) * stride; }
  // The shares of output i; returns the largest of them.
  TARPEG_HD double fill(const AxisPlan& axis, int i, const double* lanczos) const {
    double* const row = shares + static_cast<int64_t>(i) * shares_stride;
    const Taps taps = output_shares(axis, i, lanczos, row);
    start[i] = taps.first;
    counts[i] = taps.count;
    double peak = row[0];
    for (int j = 1; j < counts[i]; ++j) peak = largest(peak, row[j]);
    return peak;
  }
  TARPEG_HD void round(int i) const {
    round_weights(shares + static_cast<int64_t>(i) * shares_stride, counts[i], counts[i], precision(),
                  weights + static_cast<int64_t>(i) * stride);
  }
};

}  // namespace tarpeg::gather
