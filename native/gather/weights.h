#pragma once

#include <cmath>
#include <cstdint>

#include "base/device.h"
#include "image/axis.h"

// The weights of resampling, as image/axis.cpp computes them: the same operations on doubles in the same
// order, of each output alone.
namespace tarpeg::gather {

constexpr int kPlaneRowBits = 8, kPlaneColumnBits = 14;

TARPEG_HD int least(int a, int b) { return a < b ? a : b; }
TARPEG_HD int most(int a, int b) { return a > b ? a : b; }
TARPEG_HD int within(int value, int low, int high) { return least(most(value, low), high); }
TARPEG_HD double largest(double a, double b) { return a < b ? b : a; }
TARPEG_HD double smallest(double a, double b) { return b < a ? b : a; }

TARPEG_HD bool is_clamped_between(Filter filter) { return filter > Filter::kAntialias; }

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

// sinc(x) sinc(x / 3) at 1024 steps each from 0 to 3: LanczosTable in image/axis.cpp.
constexpr int kLanczosSteps = 1024, kLanczosNumbers = 3 * kLanczosSteps + 2;

TARPEG_HD double lanczos_of(double x, const double* table) {
  const double place = smallest(fabs(x), 3.0) * kLanczosSteps;
  const int step = static_cast<int>(place);
  return table[step] + (place - step) * (table[step + 1] - table[step]);
}

TARPEG_HD double cubic(double x, double a) {
  x = fabs(x);
  const double inner = largest(0.0, 1 - x), outer = largest(0.0, 2 - x);
  return a * (x - 1) * (outer * outer) + (2 * x + 1 + 4 * a) * (inner * inner);
}

TARPEG_HD double half_width(Filter filter) {
  switch (filter) {
    case Filter::kAntialias:
      return 1.0;
    case Filter::kBicubic:
      return 2.0;
    case Filter::kLanczos:
      return 3.0;
    default:
      return 0.5;
  }
}

struct Scale {
  double scale, support, inverse;
};

TARPEG_HD Scale scale_of(const AxisPlan& axis) {
  const double scale = static_cast<double>(axis.in) / axis.out;
  return {scale, half_width(axis.filter) * largest(1.0, scale), 1.0 / largest(1.0, scale)};
}

// More numbers than any output takes in the course of its computation.
TARPEG_HD int stride_of(const AxisPlan& axis) {
  const double scale = largest(1.0, static_cast<double>(axis.in) / axis.out);
  const int taps = least(axis.in, 2 * static_cast<int>(ceil(half_width(axis.filter) * scale)) + 2) + 4;
  return most(taps, static_cast<int>(ceil(2 * scale_of(axis).support))) + 4;
}

TARPEG_HD double weight_of(Filter filter, double x, const double* lanczos) {
  if (filter == Filter::kBicubic) return cubic(x, -0.5);
  if (filter == Filter::kLanczos) return lanczos_of(x, lanczos);
  return x > -0.5 && x <= 0.5 ? 1.0 : 0.0;
}

// The samples of an output, from `first` on; returns how many.
TARPEG_HD int tap_weights(const AxisPlan& axis, int i, const double* lanczos, double* weights, int* first) {
  const Scale how = scale_of(axis);
  const Filter filter = axis.filter;
  const int in = axis.in;
  weights[0] = 1.0;
  if (filter == Filter::kNearest || filter == Filter::kNearestExact) {
    const float center = static_cast<float>(i) + (filter == Filter::kNearestExact ? 0.5f : 0.0f);
    const float nearest = floorf(center * (static_cast<float>(in) / static_cast<float>(axis.out)));
    *first = least(static_cast<int>(nearest), in - 1);
    return 1;
  }
  if (filter == Filter::kBilinear) {
    const double source = largest(0.0, how.scale * (i + 0.5) - 0.5);
    *first = least(static_cast<int>(source), in - 1);
    if (*first + 1 == in) return 1;
    weights[1] = smallest(1.0, source - *first);
    weights[0] = 1.0 - weights[1];
    return 2;
  }
  if (is_clamped_between(filter) && in == axis.out) {
    *first = i;
    return 1;
  }
  if (filter == Filter::kSharpBicubic) {
    const double source = how.scale * (i + 0.5) - 0.5;
    const int before = static_cast<int>(floor(source));
    *first = within(before - 1, 0, in - 1);
    const int count = within(before + 2, 0, in - 1) - *first + 1;
    for (int j = 0; j < count; ++j) weights[j] = 0.0;
    for (int j = before - 1; j <= before + 2; ++j)
      weights[within(j, 0, in - 1) - *first] += cubic(source - j, -0.75);
    return count;
  }
  const double center = how.scale * (i + 0.5);
  *first = most(static_cast<int>(center - how.support + 0.5), 0);
  int count = least(static_cast<int>(center + how.support + 0.5), in) - *first;
  double total = 0;
  if (filter == Filter::kAntialias) {
    const int width = static_cast<int>(ceil(2 * how.support));
    int taps = most(count, width);
    if (width <= 4 && count <= 4) taps = 4;
    for (int j = 0; j < taps; ++j) {
      const double weight = largest(0.0, 1.0 - fabs((*first + j - center + 0.5) * how.inverse));
      weights[j] = j < count ? weight : 0.0;
      total += weights[j];
    }
    for (int j = 0; j < taps; ++j) weights[j] /= total;
    return most(count, least(width, in - *first));
  }
  for (int j = 0; j < count; ++j) {
    weights[j] = weight_of(filter, (*first + j - center + 0.5) * how.inverse, lanczos);
    total += weights[j];
  }
  const double factor = 1 / total;
  for (int j = 0; j < count; ++j) weights[j] *= factor;
  return count;
}

// Makes means of `reduction` samples each: Note [reduction] in image/axis.h.
TARPEG_HD int reduce_taps(const AxisPlan& axis, int count, double* row, int* first) {
  const int begin = (axis.offset + *first) / axis.reduction;
  int mean = begin, left = (begin + 1) * axis.reduction - axis.offset - *first;
  double sum = 0;
  for (int j = 0; j < count; ++j, --left) {
    if (left == 0) {
      row[mean++ - begin] = sum;
      sum = 0;
      left = axis.reduction;
    }
    sum += row[j];
  }
  row[mean - begin] = sum;
  *first = begin;
  return mean - begin + 1;
}

// The pixels of an output, in the order of the stored axis.
TARPEG_HD int pixel_shares(const AxisPlan& axis, int i, const double* lanczos, double* row, int* first) {
  int count = tap_weights(axis, axis.mirrored ? axis.out - 1 - i : i, lanczos, row, first);
  if (axis.mirrored) {
    *first = axis.in - *first - count;
    for (int j = 0; j < count / 2; ++j) {
      const double other = row[j];
      row[j] = row[count - 1 - j];
      row[count - 1 - j] = other;
    }
  } else if (axis.filter != Filter::kAntialias) {
    while (count > 1 && row[count - 1] == 0.0) --count;
  }
  return axis.reduction > 1 ? reduce_taps(axis, count, row, first) : count;
}

// The same of a component, from those of the pixels: see Axis::prepare_component().
TARPEG_HD int component_shares(const AxisPlan& axis, const double* share, int taken, double* row,
                               int* first) {
  const int begin = axis.begin + *first, end = begin + taken, last = axis.count - 1, times = axis.times;
  if (!axis.mixes) {
    *first = begin / times;
    const int count = (end - 1) / times - *first + 1;
    for (int j = 0; j < count; ++j) row[j] = 0.0;
    for (int j = 0; j < taken; ++j) row[(begin + j) / times - *first] += share[j];
    return count;
  }
  *first = most(0, (begin - 1) / 2);
  const auto pixel = [share, taken](int k) { return k >= 0 && k < taken ? share[k] : 0.0; };
  int k = 2 * *first - begin;
  for (int j = 0; j < taken / 2 + 2; ++j, k += 2)
    row[j] = 0.75 * (pixel(k) + pixel(k + 1)) + 0.25 * (pixel(k - 1) + pixel(k + 2));
  const int behind = least(last, end / 2);
  if (begin == 0) row[0] += 0.25 * share[0];
  if (end - 1 == 2 * last + 1) row[behind - *first] += 0.25 * share[taken - 1];
  return behind - *first + 1;
}

// Everything of an axis before its weights are rounded. `shares`: of output i.
TARPEG_HD int output_shares(const AxisPlan& axis, int i, const double* lanczos, double* shares, int* first) {
  if (axis.times == 1) return pixel_shares(axis, i, lanczos, shares, first);
  double* const pixels = shares + axis.stride;
  const int taken = pixel_shares(axis, i, lanczos, pixels, first);
  return component_shares(axis, pixels, taken, shares, first);
}

// The bits that weights have, of an axis whose largest share is `peak`.
TARPEG_HD int precision_of(const AxisPlan& axis, double peak) {
  int precision = axis.precision;
  if (precision <= 14) peak = 1;
  // Weights of a damaged table may be anything; others are below 2, and have 14 bits.
  while (precision > kPlaneRowBits && peak * (1 << precision) > 32000) --precision;
  return precision;
}

// Rounding the running sum instead of each weight keeps the total at exactly one.
TARPEG_HD void round_weights(const double* shares, int count, int precision, int16_t* weights) {
  const double one = 1 << precision;
  double sum = 0;
  int done = 0;
  for (int j = 0; j < count; ++j) {
    sum += shares[j];
    const int upto = j + 1 == count ? 1 << precision : static_cast<int>(lrint(sum * one));
    weights[j] = static_cast<int16_t>(upto - done);
    done = upto;
  }
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
    counts[i] = output_shares(axis, i, lanczos, row, start + i);
    double peak = row[0];
    for (int j = 1; j < counts[i]; ++j) peak = largest(peak, row[j]);
    return peak;
  }
  TARPEG_HD void round(int i) const {
    round_weights(shares + static_cast<int64_t>(i) * shares_stride, counts[i], precision(),
                  weights + static_cast<int64_t>(i) * stride);
  }
};

}  // namespace tarpeg::gather
